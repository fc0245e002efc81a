"""The doors that every test of states is tried on, and servers for them."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.states.rig import MakeRig, rig_running


@pytest.fixture(params=["binary", "http"])
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> MakeRig:
    """Makes servers, to be reached through one kind of door."""

    def make(*, folder: Path | None = None, **settings: Any) -> object:
        return rig_running(request.param, folder or tmp_path / "store", **settings)

    return cast(MakeRig, make)
