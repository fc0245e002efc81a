"""The doors that every test of states is tried on, servers for them, and states with pages."""

from pathlib import Path
from typing import Any, cast

import pytest

from tests.states.rig import MakeRig, rig_running


@pytest.fixture(params=["binary", "http", "pages"])
def make_rig(request: pytest.FixtureRequest, tmp_path: Path) -> MakeRig:
    """Makes servers, to be reached through one kind of door; one of them for states with pages."""
    door, has_guest = (request.param, False) if request.param != "pages" else ("binary", True)

    def make(*, folder: Path | None = None, **settings: Any) -> object:
        return rig_running(door, folder or tmp_path / "store", has_guest=has_guest, **settings)

    return cast(MakeRig, make)
