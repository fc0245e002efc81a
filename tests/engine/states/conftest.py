"""What tests of turns run over: states without attention layers, and with them."""

import pytest

from tests.engine.states.rig import Default


@pytest.fixture(params=["record", "pages"])
def either_kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run the test once over states of each kind, wherever no model is said."""
    monkeypatch.setattr(Default, "has_guest", request.param == "pages")
