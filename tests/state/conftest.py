"""What tests of states run over: states without attention layers, and with them."""

import pytest

from tests.state.images import KINDS, Default


@pytest.fixture(params=KINDS)
def either_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test once over images of each kind, wherever no layout is said."""
    monkeypatch.setattr(Default, "layout", KINDS[request.param])
