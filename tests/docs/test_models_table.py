"""docs/models.md is what the cases of the oracles say, and they are of all models that are run."""

from tests.models.oracles.architectures import ARCHITECTURES
from tools.models_table import PATH, document
from wkvm.models.registry import MODULES


def test_the_table_of_models_is_that_of_the_cases() -> None:
    assert PATH.read_text(encoding="utf-8") == document(), "run: python -m tools.models_table"


def test_every_model_type_that_is_run_has_an_oracle() -> None:
    held = [name for one in ARCHITECTURES for name in one.model_types]
    assert sorted(held) == sorted(MODULES)
