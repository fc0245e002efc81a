"""Log probabilities are kept as numbers, and read as objects."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_client.completing import unpack_logprobs
from wkvm_client.packed import PackedLogprobs
from wkvm_client.results import TokenLogprobs
from wkvm_protocol.messages import Logprobs, pack_floats, pack_ids

IDS = st.integers(0, 2**32 - 1)
NUMBERS = st.floats(width=32, allow_nan=False, max_value=0)


@st.composite
def messages(draw: st.DrawFn) -> Logprobs:
    n, n_top = draw(st.integers(0, 3)), draw(st.integers(0, 4))

    def ids(n_ids: int) -> bytes:
        return pack_ids(draw(st.lists(IDS, min_size=n_ids, max_size=n_ids)))

    def numbers(n_numbers: int) -> bytes:
        return pack_floats(draw(st.lists(NUMBERS, min_size=n_numbers, max_size=n_numbers)))

    return Logprobs(
        1, 0, False, 0, n_top, ids(n), numbers(n), ids(n), ids(n * n_top), numbers(n * n_top)
    )


def packed(*told: Logprobs) -> PackedLogprobs:
    """What was told, as it is kept."""
    kept = PackedLogprobs()
    for message in told:
        kept.add(message)
    return kept


def of_one_id(n_top: int) -> Logprobs:
    """What a message says of an id: ids that Python has no objects of, and a different number."""
    tops = range(1000, 1000 + n_top)
    lowest = pack_floats([-0.5 - 1 / (top - 999) for top in tops])
    return Logprobs(
        1,
        0,
        False,
        0,
        n_top,
        pack_ids([999]),
        pack_floats([-0.5]),
        pack_ids([1]),
        pack_ids(tops),
        lowest,
    )


@given(told=st.lists(messages(), max_size=4))
def test_what_is_read_is_what_was_told_however_it_was_cut(told: list[Logprobs]) -> None:
    kept = packed(*told)
    entries = [entry for message in told for entry in unpack_logprobs(message)]
    assert list(kept) == kept[:] == entries
    assert kept == entries
    assert repr(kept) == repr(entries)
    assert len(kept) == len(entries)


@given(told=st.lists(messages(), max_size=3), at=st.slices(8), index=st.integers(-10, 10))
def test_entries_are_read_as_those_of_a_list(told: list[Logprobs], at: slice, index: int) -> None:
    kept = packed(*told)
    entries = kept[:]
    assert kept[at] == entries[at]
    try:
        wanted = entries[index]
    except IndexError:
        with pytest.raises(IndexError):
            kept[index]
    else:
        assert kept[index] == wanted


def test_others_are_not_equal() -> None:
    kept = packed(of_one_id(2), of_one_id(2))
    entry = kept[0]
    assert kept != [entry]
    assert kept != [entry, TokenLogprobs(1, -0.5, 1, ())]
    assert kept != 7


def test_an_id_with_its_20_most_likely_is_kept_in_less_than_256_bytes() -> None:
    told = of_one_id(20)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        kept = packed(*[told] * 1000)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(kept) == 1000
    assert after - before < 256 * 1000
