"""Outputs lack the sequences of ids that they are to lack, and nobody else notices."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.fake_gpu import SteppingModel, fake_gpu_runner
from tests.engine.grammar_rig import BYTES, EOS, PROMPT, Rig, why
from tests.fakes import FakeModel, fake_logits
from wkvm.core.config import EngineConfig
from wkvm.core.grammar import Grammar
from wkvm.core.request import RequestSpec, Status
from wkvm.core.sampling import SamplingParams
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler
from wkvm.engine.without import MAX_SEQUENCE_LENGTH, MAX_SEQUENCES, Without

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


def without(ids: list[list[int]], **more: str) -> Grammar:
    return Grammar("without", json.dumps({"ids": ids, **more}))


def expected(n: int, ids: list[list[int]]) -> list[int]:
    """The definition: at each position the likeliest id that completes no sequence."""
    output = list[int]()
    for _ in range(n):
        logits = fake_logits([*PROMPT, *output], 256)
        ranked = sorted(range(256), key=lambda i: (-logits[i], i))
        for token_id in ranked:
            longer = [*output, token_id]
            if not any(longer[-len(some) :] == some for some in ids):
                break
        output.append(token_id)
    return output


def test_each_position_has_the_likeliest_id_that_completes_nothing() -> None:
    rig = Rig()
    plain = expected(12, [])
    banned = [[plain[0]], plain[2:4], plain[5:8]]
    assert rig.follow(without(banned), **GREEDY).ids == expected(12, banned)
    assert rig.follow(without([[255, 254, 253]]), **GREEDY).ids == plain


def test_a_sequence_that_begins_in_the_prompt_may_be_completed() -> None:
    rig = Rig()
    plain = expected(12, [])
    assert rig.follow(without([[PROMPT[-1], plain[0]]]), **GREEDY).ids == plain


def test_the_end_of_a_turn_ends_it_as_ever() -> None:
    rig = Rig()
    outcome = rig.follow(without([[7]]), temperature=0, max_tokens=5, logit_bias=((EOS, 100.0),))
    assert outcome.ids == []
    assert outcome.end is not None
    assert (outcome.end.status, outcome.end.stop_id) == (Status.STOPPED, EOS)


def test_another_grammar_is_followed_besides() -> None:
    rig = Rig()
    grammar = without([[97], [98, 98]], kind="regex", source="[abc]{8}")
    text = bytes(rig.follow(grammar, **GREEDY).ids).decode()
    assert len(text) == 8
    assert set(text) <= {"b", "c"}
    assert "bb" not in text


def test_what_leaves_nothing_to_choose_fails_by_its_field() -> None:
    rig = Rig()
    outcome = rig.follow(without([[97]], kind="regex", source="a"), **GREEDY)
    assert "no id" in why(outcome)
    outcome = rig.follow(without([[5]]), allowed_ids=(5,), **GREEDY)
    assert outcome.ids == []


@pytest.mark.parametrize(
    "source",
    [
        "",
        "[]",
        '{"ids": []}',
        '{"ids": [[]]}',
        '{"ids": [[256]]}',
        '{"ids": [[-1]]}',
        '{"ids": [[true]]}',
        '{"ids": [["a"]]}',
        '{"ids": [[1]], "more": 1}',
        '{"ids": [[1]], "kind": "without", "source": "x"}',
        '{"ids": [[1]], "kind": "yaml", "source": "x"}',
        '{"ids": [[1]], "kind": "regex", "source": "("}',
        json.dumps({"ids": [[1]] * (MAX_SEQUENCES + 1)}),
        json.dumps({"ids": [[1] * (MAX_SEQUENCE_LENGTH + 1)]}),
    ],
)
def test_what_says_nothing_that_can_be_done_ends_its_own_request(source: str) -> None:
    rig = Rig()
    good = rig.ask(without([[5]]), SamplingParams(**GREEDY))[0]
    assert why(rig.follow(Grammar("without", source), **GREEDY))
    assert good.ids == expected(12, [[5]])


def test_as_many_and_as_long_sequences_as_may_be_are_taken() -> None:
    rig = Rig()
    many = [[1]] * (MAX_SEQUENCES - 1) + [[1] * MAX_SEQUENCE_LENGTH]
    assert len(rig.follow(without(many), **GREEDY).ids) == 12


def test_one_that_is_cancelled_while_its_grammar_is_made_is_forgotten() -> None:
    rig = Rig()
    spec = RequestSpec(
        prompt=PROMPT,
        params=SamplingParams(**GREEDY),
        grammar=without([[97]], kind="regex", source="[a-z]+"),
    )
    (request_id,) = rig.begin(spec)
    rig.step()
    rig.cancel(request_id)
    rig.finish()
    assert rig.follow(without([[5]]), **GREEDY).ids == expected(12, [[5]])
    compiler = rig.engine._grammars
    assert compiler is not None
    assert not compiler._without


def test_steps_ahead_on_a_device_lack_the_same() -> None:
    config = EngineConfig(n_slots=4)
    compiler = GrammarCompiler(BYTES, vocab_size=256)
    model = SteppingModel(256, eos_ids=(EOS,))
    rig = Rig()
    rig.engine = Engine(model, config, grammars=compiler, make_runner=fake_gpu_runner)  # type: ignore[arg-type]
    plain = expected(12, [])
    banned = [[plain[1]], plain[3:5]]
    assert rig.follow(without(banned), **GREEDY).ids == expected(12, banned)


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3), min_size=1, max_size=4),
    st.lists(st.integers(0, 3), max_size=12),
    st.integers(5, 17),
)
def test_the_mask_is_the_definition(
    sequences: list[list[int]], output: list[int], vocab_size: int
) -> None:
    constraint = Without(sequences, vocab_size, allowed_ids=None, inner=None)
    for token_id in output:
        assert constraint.advance(token_id) is False
    mask = constraint.next_ids(may_stop=True)
    for token_id in range(len(mask) * 8):
        longer = [*output, token_id]
        completes = any(
            longer[-len(some) :] == some for some in sequences if len(some) <= len(longer)
        )
        is_set = bool(mask[token_id // 8] >> token_id % 8 & 1)
        assert is_set == (token_id < vocab_size and not completes)


def test_who_lacks_nothing_is_not_touched() -> None:
    rig = Rig(FakeModel(256, eos_ids=(EOS,)))
    plain = rig.ask(None, SamplingParams(**GREEDY))[0]
    rig.follow(without([[expected(12, [])[0]]]), **GREEDY)
    assert plain.ids == expected(12, [])
