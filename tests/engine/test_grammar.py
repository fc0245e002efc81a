"""Output follows its grammar, and nobody else notices."""

import json
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.engine.conftest import BUNDLED
from tests.engine.driver import Outcome, greedy
from tests.engine.grammar_rig import BYTES, EOS, PROMPT, Rig, regex, schema, why
from tests.fakes import FakeModel, fake_continuation, fake_logits
from wkvm.assembly.engine import texts_of_ids
from wkvm.core.grammar import Grammar
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams
from wkvm.gateway.text import load_tokenizer
from wkvm.models.base import Model

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
