"""What is proved of an architecture, and what is refused.

Neither torch nor transformers is needed to read this: ``docs/models.md`` is made of it too.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

Config = dict[str, Any]
"""The contents of a ``config.json``."""

Rewrite = Callable[[Config, dict[str, Any]], tuple[Config, dict[str, Any]]]
"""From the config and the tensors that transformers wrote to those of another publisher."""


@dataclass(frozen=True, slots=True)
class Case:
    """A random small configuration that transformers runs too.

    Attributes:
        name: what is odd about it, in few words; distinct within an architecture.
        config: arguments of the class of configurations.
        rewrite: how the folder is changed after transformers has written it.
        draw: which weights. Another where in one draw the output of some head is next to nothing,
            and its norm makes rounding errors as large as what is compared.
    """

    name: str
    config: Mapping[str, object]
    rewrite: Rewrite | None = None
    draw: int = 0


@dataclass(frozen=True, slots=True)
class Refusal:
    """A configuration that would change the computation, and is not run.

    Attributes:
        changes: fields of a case's ``config.json`` that are set.
        says: a part of the error's message.
        case: the name of the case; the first one if it is empty.
    """

    changes: Mapping[str, object]
    says: str
    case: str = ""


@dataclass(frozen=True, slots=True)
class Architecture:
    """A class of models.

    Attributes:
        class_name: in the library that is its oracle.
        config_class: of its configurations, likewise.
        model_type: as ``config.json`` has it.
        family: of its states.
        tensors: which of the family's tensors are transformers' recurrent states and windows.
        guest: what its attention layers keep of a token: ``keys and values``, ``latents``, or
            nothing.
        supported: what of its configurations is honoured, in a sentence or two.
        cases: at least one.
        refusals: what is refused with a typed error.
        ignored: prefixes of names of tensors that a folder may have, and that are not loaded.
        around: the ``model_type`` of models of which this is a part.
        oracle: the library.
    """

    class_name: str
    config_class: str
    model_type: str
    family: str
    tensors: tuple[str, str]
    guest: str
    supported: str
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...] = ()
    ignored: tuple[str, ...] = ()
    around: str | None = None
    oracle: str = "transformers"

    @property
    def model_types(self) -> tuple[str, ...]:
        """All that are loaded as this architecture."""
        return (self.model_type,) if self.around is None else (self.model_type, self.around)

    @property
    def name(self) -> str:
        """Short: the class without what all of them end with."""
        return self.class_name.removesuffix("ForCausalLM")
