"""Grammars that are wrong, too large or slow to compile harm nobody but their request."""

import subprocess
import sys
import textwrap
import threading
from typing import Any

import pytest

from tests.engine.driver import Driver, Outcome, greedy
from tests.engine.grammar_rig import PROMPT, Rig, regex, why
from tests.fakes import FakeModel, fake_continuation
from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine import grammars, guidance
from wkvm.engine.grammars import N_COMPILING, N_KEPT

# --- what is wrong with a grammar ---------------------------------------------------------


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        (regex("(a"), "unclosed group"),
        (regex("(?=a)b"), "look-around"),
        (Grammar("json_schema", "{"), "not a JSON schema"),
        (Grammar("json_schema", '{"type": "strin"}'), "Invalid type: strin"),
        (Grammar("json_schema", '{"type": "array", "uniqueItems": true}'), "uniqueItems"),
        (Grammar("json_schema", '"text"'), ""),
        (Grammar("json_schema", "[" * 10_000), "not a JSON schema"),
        (Grammar("json_schema", '{}, {"type": "object"}'), "not a JSON schema"),
        (Grammar("lark", "start: nope"), 'at 1(8): unknown name: "nope"'),
        (Grammar("lark", ""), ""),
        (regex("[^\\x00-\\U0010ffff]"), "no text of it can be made"),
    ],
    ids=lambda one: one.source[:20] if isinstance(one, Grammar) else "",
)
def test_a_wrong_grammar_ends_its_request_alone(grammar: Grammar, said: str) -> None:
    rig = Rig()
    (other,) = rig.ask(None, greedy(20))
    (outcome,) = rig.ask(grammar)
    rig.finish()
    assert said in why(outcome)
    assert len(why(outcome)) <= 400
    assert "llguidance" not in why(outcome)
    assert outcome.ids == []
    assert other.ids == fake_continuation(PROMPT, 20, 256)


def test_a_grammar_that_becomes_too_complex_ends_its_request_alone() -> None:
    rig = Rig()
    (other,) = rig.ask(None, greedy(20))
    ambiguous = Grammar("lark", 'start: s\ns: s s s | s s | "a" | "aa" | "b"')
    (outcome,) = rig.ask(ambiguous, SamplingParams(seed=1, min_tokens=400, max_tokens=400))
    rig.finish()
    assert "items" in why(outcome)
    assert set(bytes(outcome.ids)) <= set(b"ab")
    assert len(outcome.ids) > 10
    assert other.ids == fake_continuation(PROMPT, 20, 256)


NESTED = '{"type": "array", "items": '


@pytest.mark.parametrize(
    "grammar",
    [
        regex("(a+)+b"),
        regex("((a{1000}){1000}){1000}"),
        regex("(" * 10_000 + "a" + ")" * 10_000),
        Grammar("json_schema", NESTED * 2000 + "{}" + "}" * 2000),
        Grammar("json_schema", "[" * 10_000 + "]" * 10_000),
        Grammar("json_schema", '{"$ref": "#"}'),
        Grammar("json_schema", '{"type": "string", "minLength": 1000000000}'),
        Grammar("json_schema", '{"type": "integer", "multipleOf": 1' + "0" * 5000 + "}"),
        Grammar("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
        # without a stack of its own this one ends the process
        Grammar(
            "lark",
            "start: r0\n" + "".join(f"r{i}: r{i + 1}\n" for i in range(4700)) + 'r4700: "a"',
        ),
        Grammar("lark", "start: s\ns: s s |"),
        Grammar("lark", "start: R0\n" + "".join(f"R{i}: R{i + 1} R{i + 1}\n" for i in range(60))),
    ],
    ids=lambda grammar: grammar.source[:16],
)
def test_the_worst_grammars_do_no_harm(grammar: Grammar) -> None:
    rig = Rig()
    (other,) = rig.ask(None, greedy(20))
    (outcome,) = rig.ask(grammar, SamplingParams(seed=1, max_tokens=8))
    rig.finish()
    if outcome.status is Status.FINISHED_ERROR:
        why(outcome)
    assert other.ids == fake_continuation(PROMPT, 20, 256)


def test_a_grammar_whose_masks_take_too_long_ends_its_own_request_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig()
    monkeypatch.setattr(grammars, "ALLOWANCE_S", 1e-9)
    monkeypatch.setattr(grammars, "MEAN_S", 0.0)
    (other,) = rig.ask(None, greedy(20))
    assert "too long" in why(rig.follow(regex("[a-z]{20}")))
    rig.finish()
    assert other.ids == fake_continuation(PROMPT, 20, 256)


def test_an_engine_without_a_compiler_takes_no_grammar() -> None:
    driver = Driver(FakeModel())
    assert not driver.engine.info.takes_grammars
    assert Rig().engine.info.takes_grammars
    with pytest.raises(InvalidParameterError, match=r"^grammar: "):
        driver.engine.submit(RequestSpec(prompt=(1,), grammar=regex("a")), 0.0)


# --- compiling ----------------------------------------------------------------------------


class Slow:
    """Compiles when told to. Counts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.may_go_on = threading.Event()
        self.sources = list[str]()
        self.only: str | None = None
        self.before = set(threading.enumerate())
        self._compile = guidance.compiled_of
        monkeypatch.setattr(guidance, "compiled_of", self)

    def __call__(self, grammar: Grammar, tokenizer: Any) -> Any:
        self.sources.append(grammar.source)
        if self.only in (None, grammar.source):
            assert self.may_go_on.wait(60)
        return self._compile(grammar, tokenizer)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Slow:
    return Slow(monkeypatch)


def test_nobody_else_waits_for_a_grammar_that_is_compiled(slow: Slow) -> None:
    rig = Rig()
    (waiting,) = rig.ask(regex("abc"))
    (other,) = rig.ask(None, greedy(20))
    while other.status is None:
        rig.step()
    assert other.ids == fake_continuation(PROMPT, 20, 256)
    assert waiting.ids == []
    assert waiting.status is None
    slow.may_go_on.set()
    rig.finish()
    assert bytes(waiting.ids) == b"abc"


def test_a_request_can_end_while_its_grammar_is_compiled(
    slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(grammars, "N_COMPILING", 1)
    rig = Rig(n_slots=2)
    request_ids = [
        rig.engine.submit(RequestSpec(prompt=PROMPT, grammar=regex(source)), 0.0)[0]
        for source in ("first", "second", "third")
    ]
    rig.outcomes.update((request_id, Outcome()) for request_id in request_ids)
    assert rig.engine.plan(0.0) is None
    for request_id in request_ids[:2]:
        rig.cancel(request_id)
        assert rig.outcomes[request_id].status is Status.CANCELLED
    slow.may_go_on.set()
    rig.finish()
    assert bytes(rig.outcomes[request_ids[2]].ids) == b"third"
    assert slow.sources == ["first", "third"]


def test_a_grammar_is_compiled_once_while_it_is_kept(slow: Slow) -> None:
    slow.may_go_on.set()
    rig = Rig()
    sources = [f"{i:02}" for i in range(N_KEPT)]
    for source in [*sources, sources[0]]:
        assert bytes(rig.follow(regex(source), n=3).ids) == source.encode()
    assert slow.sources == sources
    for _ in range(2):
        why(rig.follow(regex("(")))
    assert slow.sources == [*sources, "("]
    rig.follow(regex(sources[0]))
    rig.follow(regex(sources[1]))  # was not used for the longest time
    assert slow.sources == [*sources, "(", sources[1]]


def test_a_grammar_that_is_asked_for_twice_is_compiled_once(slow: Slow) -> None:
    rig = Rig()
    outcomes = [rig.ask(regex(source))[0] for source in ("one", "two", "one")]
    assert rig.engine.plan(0.0) is None
    assert rig.engine.plan(1.0) is None
    slow.may_go_on.set()
    rig.finish()
    assert [bytes(outcome.ids) for outcome in outcomes] == [b"one", b"two", b"one"]
    assert sorted(slow.sources) == ["one", "two"]


def test_a_slow_grammar_keeps_no_other_waiting(slow: Slow) -> None:
    slow.only = "slow"
    rig = Rig()
    (waiting,) = rig.ask(regex("slow"))
    (other,) = rig.ask(regex("other"))
    while other.status is None:
        rig.step()
    assert bytes(other.ids) == b"other"
    assert waiting.status is None
    slow.may_go_on.set()
    rig.finish()
    assert bytes(waiting.ids) == b"slow"


def test_a_few_grammars_at_a_time_are_compiled(slow: Slow) -> None:
    rig = Rig(n_slots=N_COMPILING + 2)
    outcomes = [rig.ask(regex(f"[{n}]{{9}}"))[0] for n in range(N_COMPILING + 2)]
    assert rig.engine.plan(0.0) is None
    assert rig.engine.plan(1.0) is None
    threads = set(threading.enumerate()) - slow.before
    assert [thread.name for thread in threads] == ["wkvm-grammar"] * N_COMPILING
    slow.may_go_on.set()
    rig.finish()
    assert [bytes(outcome.ids) for outcome in outcomes] == [
        b"%d" % n * 9 for n in range(N_COMPILING + 2)
    ]


def test_a_compiler_that_breaks_fails_the_request_and_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(grammar: Grammar, tokenizer: Any) -> Any:
        raise SystemError("a secret")

    monkeypatch.setattr(guidance, "compiled_of", broken)
    assert "secret" not in why(Rig().follow(regex("a")))
    assert "a secret" in caplog.text


def test_without_grammars_llguidance_is_not_imported() -> None:
    script = textwrap.dedent(
        """
        import sys
        from tests.fakes import FakeModel
        from wkvm.core.config import EngineConfig
        from wkvm.core.grammar import Grammar
        from wkvm.core.request import RequestSpec
        from wkvm.engine.engine import Engine
        from wkvm.engine.grammars import GrammarCompiler
        compiler = GrammarCompiler([bytes([i]) for i in range(64)], vocab_size=64)
        engine = Engine(FakeModel(), EngineConfig(n_slots=1), grammars=compiler)
        for grammar in (None, Grammar("regex", "0")):
            assert "llguidance" not in sys.modules
            engine.submit(RequestSpec(prompt=(1,), grammar=grammar), 0.0)
            while not any(type(event).__name__ == "EndEvent" for event in engine.step(0.0)):
                pass
        assert "llguidance" in sys.modules
        """
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=600)
