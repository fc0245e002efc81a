import os
import sys

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.stalls"]

# A timing never fails a test. In continuous integration the examples are the same each time, so
# that a change is judged by what it does; elsewhere they are new ones, to find more.
settings.register_profile(
    "wkvm",
    deadline=None,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("wkvm")


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Random tensors of a test are the same whatever ran before it in its process."""
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules with a test marked ``long`` come first.

    Workers take one module after another: one that came last would be waited for alone.
    """
    long = {item.path for item in items if item.get_closest_marker("long") is not None}
    items.sort(key=lambda item: item.path not in long)
