"""An engine that takes grammars, driven step by step, for the tests of grammars."""

import json
from typing import Any

from tests.engine.driver import Driver, Outcome
from tests.fakes import FakeModel
from wkvm.core.config import EngineConfig
from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.models.base import Model

EOS = 0
BYTES = [b"", *(bytes([i]) for i in range(1, 256))]
"""The vocabulary of the fake model: bytes, but for the id that ends a turn."""
PROMPT = (72, 105)
COMPACT = {"whitespace_flexible": False}


class Rig(Driver):
    """A driver whose engine takes grammars."""

    def __init__(
        self,
        model: Model | None = None,
        token_bytes: list[bytes] | None = None,
        n_slots: int = 8,
    ) -> None:
        model = FakeModel(256, eos_ids=(EOS,)) if model is None else model
        config = EngineConfig(n_slots=n_slots, poison_freed_slots=True)
        super().__init__(model, config)
        compiler = GrammarCompiler(
            BYTES if token_bytes is None else token_bytes, vocab_size=model.info.vocab_size
        )
        self.engine = Engine(model, config, grammars=compiler)

    def ask(
        self,
        grammar: Grammar | None,
        params: SamplingParams | None = None,
        prompt: tuple[int, ...] = PROMPT,
        credit: int | None = None,
    ) -> list[Outcome]:
        spec = RequestSpec(
            prompt=prompt, params=params or SamplingParams(seed=1), grammar=grammar, credit=credit
        )
        request_ids = self.engine.submit(spec, self.now)
        self.outcomes.update((request_id, Outcome()) for request_id in request_ids)
        return [self.outcomes[request_id] for request_id in request_ids]

    def follow(self, grammar: Grammar, **params: Any) -> Outcome:
        """One request to its end."""
        params.setdefault("seed", 1)
        outcome = self.ask(grammar, SamplingParams(**params))[0]
        self.finish()
        return outcome


def regex(source: str) -> Grammar:
    return Grammar("regex", source)


def schema(value: Any, *, compact: bool = True) -> Grammar:
    if compact and isinstance(value, dict):
        value = {**value, "x-guidance": COMPACT}
    return Grammar("json_schema", json.dumps(value))


def why(outcome: Outcome) -> str:
    """Why a request failed, which has to be its grammar."""
    assert outcome.status is Status.FINISHED_ERROR
    assert outcome.end is not None
    error = outcome.end.error
    assert isinstance(error, InvalidParameterError)
    assert error.field == "grammar"
    return error.why
