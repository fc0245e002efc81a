"""Output follows its grammar, and nobody else notices."""

import json
import math
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Driver, Outcome, greedy
from tests.fakes import FakeModel, fake_continuation, fake_logits
from wkvm.assembly.engine import texts_of_ids
from wkvm.core.config import EngineConfig
from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine import grammars
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import N_KEPT, GrammarCompiler
from wkvm.gateway.text import load_tokenizer
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


# --- what comes out -----------------------------------------------------------------------

Checked = tuple[dict[str, Any], Callable[[Any], bool]]
"""A schema, and whether a value fits it, said a second time."""


def _integers(bounds: tuple[int, int]) -> Checked:
    low, high = min(bounds), max(bounds)
    return (
        {"type": "integer", "minimum": low, "maximum": high},
        lambda value: type(value) is int and low <= value <= high,
    )


def _enums(values: list[str]) -> Checked:
    return {"enum": values}, lambda value: value in values


def _strings(length: int) -> Checked:
    return (
        {"type": "string", "pattern": "^[a-c\u00e9]*$", "maxLength": length},
        lambda value: re.fullmatch(f"[a-c\u00e9]{{0,{length}}}", value) is not None,
    )


def _arrays(of: Checked) -> Checked:
    inner, fits = of
    return (
        {"type": "array", "items": inner, "minItems": 1, "maxItems": 3},
        lambda value: 1 <= len(value) <= 3 and all(map(fits, value)),
    )


def _objects(of: dict[str, Checked]) -> Checked:
    return (
        {
            "type": "object",
            "properties": {key: inner for key, (inner, _) in of.items()},
            "required": list(of),
            "additionalProperties": False,
        },
        lambda value: set(value) == set(of) and all(of[key][1](value[key]) for key in of),
    )


LEAVES = st.one_of(
    st.tuples(st.integers(-999, 999), st.integers(-999, 999)).map(_integers),
    st.lists(st.text(max_size=5), min_size=1, max_size=4).map(_enums),
    st.integers(0, 8).map(_strings),
)
SCHEMAS = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        inner.map(_arrays),
        st.dictionaries(st.sampled_from(["a", "b", "key", "\u00fc"]), inner, max_size=3).map(
            _objects
        ),
    ),
    max_leaves=5,
)


@given(checked=SCHEMAS, seed=st.integers(0, 2**32))
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_output_fits_its_schema_whatever_the_model_says(checked: Checked, seed: int) -> None:
    inner, fits = checked
    outcome = Rig().follow(schema(inner), seed=seed, max_tokens=2000)
    assert outcome.status is Status.STOPPED
    assert fits(json.loads(bytes(outcome.ids).decode()))


@pytest.mark.parametrize(
    ("source", "as_python"),
    [
        ("[0-9]{3}", None),
        ("(cat|dog|é)s?!", None),
        ("a/b[/]\\\\\"'", None),
        ("a\nb", None),
        ("\\d\\d", "[0-9][0-9]"),
        ("x|", "x|"),
    ],
)
def test_a_regular_expression_is_matched_from_beginning_to_end(
    source: str, as_python: str | None
) -> None:
    for seed in range(6):
        outcome = Rig().follow(regex(source), seed=seed)
        assert outcome.status is Status.STOPPED
        assert re.fullmatch(as_python or source, bytes(outcome.ids).decode())


def test_a_lark_grammar_is_followed() -> None:
    outcome = Rig().follow(
        Grammar("lark", 'start: greeting " " NAME\ngreeting: "hi" | "hello"\nNAME: /[a-z]{2,5}/\n')
    )
    assert re.fullmatch(b"(hi|hello) [a-z]{2,5}", bytes(outcome.ids))


def test_a_schema_that_is_no_object_is_one_too() -> None:
    outcome = Rig().follow(Grammar("json_schema", "true"), max_tokens=400, seed=5)
    assert outcome.status in {Status.STOPPED, Status.LENGTH}
    assert why(Rig().follow(Grammar("json_schema", "false")))


def test_white_space_in_json_is_bounded() -> None:
    # The model wants nothing but spaces.
    params = SamplingParams(logit_bias=((32, 100.0),), temperature=0, max_tokens=300)
    rig = Rig()
    wanted = {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "required": ["a"],
        "additionalProperties": False,
    }
    (outcome,) = rig.ask(schema(wanted, compact=False), params)
    rig.finish()
    text = bytes(outcome.ids).decode()
    assert json.loads(text) == {"a": 1}
    assert max(map(len, re.findall(" +", text))) == 40


def test_the_bundled_model_answers_in_json(bundled: Model) -> None:
    tokenizer = load_tokenizer(BUNDLED)
    rig = Rig(bundled, texts_of_ids(tokenizer, bundled.info.eos_ids), n_slots=2)
    wanted = schema(
        {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 20},
                "mood": {"enum": ["happy", "sad"]},
                "age": {"type": "integer", "minimum": 0, "maximum": 120},
            },
            "required": ["name", "mood", "age"],
            "additionalProperties": False,
        }
    )
    (outcome,) = rig.ask(wanted, greedy(200), tuple(tokenizer.encode("Once upon a time")))
    rig.finish()
    assert outcome.status is Status.STOPPED
    value = json.loads(tokenizer.decode(outcome.ids))
    assert value["mood"] in {"happy", "sad"}
    assert 0 <= value["age"] <= 120
    assert len(value["name"]) <= 20


# --- the end ------------------------------------------------------------------------------


def test_a_complete_output_ends_with_its_last_id_and_no_further_pass() -> None:
    model = FakeModel(256, eos_ids=(EOS,))
    outcome = Rig(model).follow(regex("[0-9]{5}"))
    assert outcome.status is Status.STOPPED
    assert outcome.end is not None
    assert outcome.end.stop_id is None
    assert outcome.end.n_output == len(outcome.ids) == 5
    assert model.n_forwards == 5


def test_a_stop_id_can_be_chosen_where_the_output_may_end_and_nowhere_else() -> None:
    lengths = set[int]()
    for seed in range(12):
        outcome = Rig().follow(regex("[a-p]{3}[q-z]*"), seed=seed, max_tokens=200)
        assert outcome.end is not None
        assert outcome.end.stop_id == EOS
        assert re.fullmatch(b"[a-p]{3}[q-z]*", bytes(outcome.ids))
        lengths.add(len(outcome.ids))
    assert min(lengths) >= 3
    assert len(lengths) > 1


def test_a_stop_id_is_never_part_of_the_text() -> None:
    for seed in range(6):
        outcome = Rig().follow(regex("[ab]{6}c?"), seed=seed, stop_ids=(ord("b"),))
        assert outcome.ids[:6] == [ord("a")] * 6
        assert outcome.end is not None
        assert outcome.end.stop_id in {None, EOS, ord("b")}


def test_ignore_eos_goes_on_for_as_long_as_the_grammar_does() -> None:
    outcome = Rig().follow(regex("a*"), ignore_eos=True, max_tokens=30)
    assert outcome.status is Status.LENGTH
    assert bytes(outcome.ids) == b"a" * 30


def test_the_end_of_the_grammar_goes_before_min_tokens() -> None:
    outcome = Rig().follow(regex("ab"), min_tokens=9, max_tokens=9)
    assert outcome.status is Status.STOPPED
    assert bytes(outcome.ids) == b"ab"


def test_before_min_tokens_no_stop_id_is_chosen_where_the_grammar_goes_on() -> None:
    for seed in range(4):
        outcome = Rig().follow(regex("a*"), seed=seed, min_tokens=20, max_tokens=1000)
        assert len(outcome.ids) >= 20


@pytest.mark.parametrize("max_tokens", [2, 3, 4])
def test_the_end_of_the_grammar_goes_before_max_tokens(max_tokens: int) -> None:
    outcome = Rig().follow(regex("abc"), max_tokens=max_tokens)
    assert bytes(outcome.ids) == b"abc"[:max_tokens]
    assert outcome.status is (Status.LENGTH if max_tokens == 2 else Status.STOPPED)


@pytest.mark.parametrize("vocab_size", [256, 301])
def test_a_grammar_that_allows_nothing_ends_at_once(vocab_size: int) -> None:
    outcome = Rig(FakeModel(vocab_size, eos_ids=(EOS,))).follow(regex(""), ignore_eos=True)
    assert outcome.status is Status.STOPPED
    assert outcome.ids == []


def test_the_end_of_the_grammar_costs_no_credit() -> None:
    rig = Rig()
    (outcome,) = rig.ask(regex("abc"), credit=3)
    rig.finish()
    assert outcome.status is Status.STOPPED


# --- with other parameters ----------------------------------------------------------------


def test_allowed_ids_narrow_the_grammar() -> None:
    outcome = Rig().follow(regex("[a-z]{20}"), allowed_ids=(ord("x"), ord("7"), ord("q")))
    assert set(bytes(outcome.ids)) == set(b"xq")


def test_where_nothing_is_left_to_choose_the_request_fails() -> None:
    outcome = Rig().follow(regex("abc"), allowed_ids=(ord("a"), ord("b")))
    assert bytes(outcome.ids) == b"ab"
    assert why(outcome) == "no id that may come next is left"


def test_where_nothing_is_left_to_choose_a_complete_output_ends() -> None:
    outcome = Rig().follow(regex("a(bc)?"), allowed_ids=(ord("a"),))
    assert outcome.status is Status.STOPPED
    assert bytes(outcome.ids) == b"a"


def test_stop_ids_that_are_banned_are_nothing_to_choose() -> None:
    outcome = Rig().follow(regex("a(bc)?"), allowed_ids=(ord("a"), EOS), min_tokens=5)
    assert outcome.status is Status.STOPPED
    assert bytes(outcome.ids) == b"a"


def test_penalties_and_filters_work_on_what_is_left() -> None:
    outcome = Rig().follow(
        regex("[a-z]{26}"), presence_penalty=100.0, repetition_penalty=1.3, temperature=0
    )
    assert sorted(bytes(outcome.ids)) == list(range(ord("a"), ord("z") + 1))
    outcome = Rig().follow(regex("[a-z]{40}"), top_k=3, top_p=0.9, min_p=0.01)
    assert re.fullmatch(b"[a-z]{40}", bytes(outcome.ids))


def test_log_probabilities_are_those_of_the_model_without_the_grammar() -> None:
    outcome = Rig().follow(regex("[0-9]{4}"), logprobs=2)
    for index, (token_id, reported) in enumerate(zip(outcome.ids, outcome.logprobs, strict=True)):
        logits = fake_logits([*PROMPT, *outcome.ids[:index]], 256)
        mass = math.log(sum(map(math.exp, logits)))
        assert reported is not None
        assert reported.token_id == token_id
        assert reported.logprob == pytest.approx(logits[token_id] - mass, abs=1e-4)
        assert reported.rank == sorted(logits, reverse=True).index(logits[token_id]) + 1


def test_each_choice_follows_the_grammar_on_its_own() -> None:
    rig = Rig()
    outcomes = rig.ask(regex("[a-z]{3,30}"), SamplingParams(n=6, seed=3))
    rig.finish()
    for outcome in outcomes:
        assert re.fullmatch(b"[a-z]{3,30}", bytes(outcome.ids))
    assert len({bytes(outcome.ids) for outcome in outcomes}) == 6


def test_a_batch_does_not_change_what_anybody_gets() -> None:
    params = SamplingParams(temperature=0, max_tokens=60)
    kinds = [regex("[a-z ]{10,40}"), schema({"type": "array", "items": {"enum": [1, 22]}}), None]
    alone = list[Outcome]()
    for at, kind in enumerate(kinds * 2):
        rig = Rig()
        alone += rig.ask(kind, params, prompt=(at + 1, 7))
        rig.finish()
    rig = Rig()
    together = [
        outcome
        for at, kind in enumerate(kinds * 2)
        for outcome in rig.ask(kind, params, prompt=(at + 1, 7))
    ]
    rig.finish()
    assert [o.ids for o in together] == [o.ids for o in alone]
    plain = fake_continuation((3, 7), 60, 256)
    assert together[2].ids == (plain[: plain.index(EOS)] if EOS in plain else plain)


@pytest.mark.parametrize("allowed_ids", [None, (ord("b"),)])
def test_rows_that_do_not_sample_are_told_from_those_that_do(
    allowed_ids: tuple[int, ...] | None,
) -> None:
    rig = Rig()
    rig.follow(regex("a"))
    (outcome,) = rig.ask(regex("a"), SamplingParams(allowed_ids=allowed_ids))
    rig.ask(None, greedy(1))
    rig.step()  # the grammar is known, and its request can take part in the next step
    (scored,) = rig.ask(None, SamplingParams(max_tokens=0), prompt=(5,))
    rig.step()
    assert scored.status is Status.LENGTH
    if allowed_ids is None:
        assert outcome.status is Status.STOPPED
        assert bytes(outcome.ids) == b"a"
    else:
        why(outcome)


def test_ids_that_the_tokenizer_lacks_are_ruled_out() -> None:
    outcome = Rig(FakeModel(301, eos_ids=(EOS,))).follow(regex("(?s:.){80}"), ignore_eos=True)
    assert len(bytes(outcome.ids).decode()) == 80
    tokens = [*BYTES[:128], b"", *[b"abc"] * 200]
    outcome = Rig(FakeModel(130, eos_ids=(EOS,)), tokens).follow(regex("(abc)+"), max_tokens=30)
    assert set(outcome.ids) <= {97, 98, 99, 129}


@pytest.mark.parametrize("allowed", [b"abc", b"aB", b"Ac"])
def test_any_way_to_divide_a_text_into_ids_is_allowed(allowed: bytes) -> None:
    tokens = [*BYTES[:256], b"ab", b"bc"]
    ids = tuple({ord("A"): 256, ord("B"): 257}.get(byte, byte) for byte in allowed)
    rig = Rig(FakeModel(258, eos_ids=(EOS,)), tokens)
    outcome = rig.follow(regex("abc"), allowed_ids=ids)
    assert outcome.status is Status.STOPPED
    assert outcome.ids == list(ids)


def test_a_grammar_without_any_text_is_found_out_before_the_model_is_asked() -> None:
    model = FakeModel(256, eos_ids=(EOS,))
    why(Rig(model).follow(regex("[^\\x00-\\U0010ffff]")))
    assert model.n_forwards == 0


def test_a_long_prompt_is_absorbed_meanwhile_and_changes_nothing() -> None:
    prompt = tuple(1 + i % 250 for i in range(400))
    rig = Rig()
    (outcome,) = rig.ask(regex("[a-z]{9}"), SamplingParams(temperature=0), prompt=prompt)
    rig.finish()
    ids = list(prompt)
    for _ in range(9):
        logits = fake_logits(ids, 256)
        ids.append(max(range(ord("a"), ord("z") + 1), key=lambda i: (logits[i], -i)))
    assert outcome.ids == ids[400:]


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
        self._compile = grammars._compile  # pyright: ignore[reportPrivateUsage]
        monkeypatch.setattr(grammars, "_compile", self)

    def __call__(self, grammar: Grammar, tokenizer: Any) -> Any:
        self.sources.append(grammar.source)
        assert self.may_go_on.wait(10)
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


def test_a_request_can_end_while_its_grammar_is_compiled(slow: Slow) -> None:
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


def test_one_grammar_at_a_time_is_compiled(slow: Slow) -> None:
    rig = Rig()
    outcomes = [rig.ask(regex(source))[0] for source in ("one", "two", "one")]
    assert rig.engine.plan(0.0) is None
    assert rig.engine.plan(1.0) is None
    slow.may_go_on.set()
    rig.finish()
    assert [bytes(outcome.ids) for outcome in outcomes] == [b"one", b"two", b"one"]
    assert slow.sources == ["one", "two"]


def test_a_compiler_that_breaks_fails_the_request_and_says_nothing_of_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(grammar: Grammar, tokenizer: Any) -> Any:
        raise SystemError("a secret")

    monkeypatch.setattr(grammars, "_compile", broken)
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
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


# --- the vocabulary -----------------------------------------------------------------------


@pytest.mark.gpu
def test_on_a_gpu_the_same_comes_out() -> None:
    rigs = [Rig(FakeModel(256, eos_ids=(EOS,), device=device)) for device in ("cpu", "cuda")]
    params = SamplingParams(seed=5, n=4, temperature=0.7, top_p=0.9, max_tokens=200)
    outputs = list[list[list[int]]]()
    for rig in rigs:
        outcomes = rig.ask(schema({"type": "array", "items": {"type": "boolean"}}), params)
        rig.ask(None, greedy(20))
        rig.finish()
        outputs.append([outcome.ids for outcome in outcomes])
    assert outputs[0] == outputs[1]
    assert torch.cuda.is_available()
