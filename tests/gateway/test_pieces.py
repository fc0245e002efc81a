"""A choice as text, piece by piece; and choices side by side."""

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from wkvm_client import EndReason
from wkvm_client.errors import StepFailedError

from tests.gateway.harness import byte_texts
from tests.gateway.scripted import FilledChoice
from tests.gateway.test_stream import first_stop
from wkvm.gateway.failures import HttpError
from wkvm.gateway.streams.choices import Arrivals, collect, seed_of
from wkvm.gateway.streams.pieces import ChoiceText, Finish, Piece, TextOptions
from wkvm.gateway.text import IncrementalDecoder, Tokenizer
from wkvm.gateway.texts import Texts

TEXTS = byte_texts()
MOUSE = "🐭".encode()
STOPS = st.lists(st.text("ab한\n", min_size=1, max_size=9), max_size=3)


def text_of(filled: FilledChoice, *stops: str, texts: Texts = TEXTS, **more: Any) -> ChoiceText:
    options = TextOptions(stops=stops, **more)
    return ChoiceText(filled.choice, texts, options)


async def read_all(text: ChoiceText) -> list[Piece]:
    pieces = [await text.read()]
    while pieces[-1].finish is None:
        pieces.append(await text.read())
    return pieces


async def test_each_arrival_is_a_piece_and_the_end_comes_with_the_last_ids() -> None:
    filled = FilledChoice()
    text = text_of(filled)
    filled.arrive(b"ab")
    first = await text.read()
    filled.arrive(b"c")
    filled.end()
    last = await text.read()
    assert (first.text, first.ids, first.finish) == ("ab", [97, 98], None)
    assert (last.text, last.ids, last.finish) == ("c", [99], Finish("length", None, 3))


async def test_an_incomplete_character_is_held_back_and_becomes_a_replacement_at_the_end() -> None:
    filled = FilledChoice()
    text = text_of(filled)
    shown = list[str]()
    for byte in (*MOUSE, MOUSE[0]):
        filled.arrive([byte])
        shown.append((await text.read()).text)
    filled.end()
    shown.append((await text.read()).text)
    assert shown == ["", "", "", "🐭", "", "\ufffd"]


async def test_a_stop_over_token_borders_ends_the_choice_and_cancels_its_lane() -> None:
    filled = FilledChoice()
    text = text_of(filled, "ab!")
    for byte in b"xa":
        filled.arrive([byte])
    assert [(await text.read()).text] == ["x"]
    assert not filled.cancelled
    filled.arrive(b"b!yz")
    last = await text.read()
    assert (last.text, last.ids) == ("", [98, 33])
    assert last.finish == Finish("stop", "ab!", 4)
    assert filled.cancelled


async def test_the_stop_is_in_the_text_if_that_is_asked_for() -> None:
    filled = FilledChoice()
    filled.arrive(b"xab!y")
    (piece,) = await read_all(text_of(filled, "ab!", include_stop=True))
    assert piece.text == "xab!"


async def test_a_stop_id_is_no_output_but_in_the_text_if_that_is_asked_for() -> None:
    for include, shown in ((False, "x"), (True, "x.")):
        filled = FilledChoice()
        filled.arrive(b"x")
        filled.end(EndReason.STOP, stop_id=ord("."))
        (piece,) = await read_all(text_of(filled, include_stop=include))
        assert (piece.text, piece.ids) == (shown, [ord("x")])
        assert piece.finish == Finish("stop", ord("."), 1)


async def test_special_tokens_have_text_if_that_is_asked_for(bundled: Tokenizer) -> None:
    texts = Texts(bundled, TEXTS.template)
    for skip, shown in ((True, "hi"), (False, "hi<|end|>")):
        filled = FilledChoice()
        filled.arrive([*bundled.encode("hi"), 1])
        filled.end()
        (piece,) = await read_all(text_of(filled, texts=texts, skip_special=skip))
        assert piece.text == shown


async def test_before_min_tokens_a_stop_string_is_text() -> None:
    filled = FilledChoice()
    filled.arrive(b"abab!")
    options = TextOptions(stops=("ab",), min_tokens=2)
    (piece,) = await read_all(ChoiceText(filled.choice, TEXTS, options))
    assert (piece.text, len(piece.ids)) == ("ab", 4)


async def test_what_may_be_a_stop_is_shown_when_the_end_shows_that_it_is_none() -> None:
    filled = FilledChoice()
    filled.arrive(b"xa")
    filled.end()
    (piece,) = await read_all(text_of(filled, "ab"))
    assert (piece.text, piece.finish) == ("xa", Finish("length", None, 2))


async def test_a_failure_comes_after_the_ids_that_came_before_it() -> None:
    filled = FilledChoice()
    text = text_of(filled)
    filled.arrive(b"x")
    filled.fail(StepFailedError("no"))
    assert (await text.read()).text == "x"
    with pytest.raises(StepFailedError):
        await text.read()


@pytest.mark.parametrize(
    ("reason", "status"), [(EndReason.TIMED_OUT, 408), (EndReason.CANCELLED, 499)]
)
async def test_an_end_that_is_not_the_texts_own_is_an_error_after_the_last_ids(
    reason: EndReason, status: int
) -> None:
    filled = FilledChoice()
    filled.arrive(b"ab")
    filled.end(reason)
    text = text_of(filled)
    assert (await text.read()).ids == [97, 98]
    with pytest.raises(HttpError) as caught:
        await text.read()
    assert caught.value.status == status


def n_until(stops: list[str], ids: bytes) -> int:
    """The definition: the fewest ids whose complete characters have a stop in them."""
    for n in range(len(ids) + 1):
        text = IncrementalDecoder(TEXTS.tokenizer).feed(ids[:n])
        if first_stop(stops, text)[1] is not None:
            return n
    return len(ids)


@given(
    stops=STOPS,
    text=st.text("ab한\n", max_size=30),
    tail=st.sampled_from([b"", b"\xed", b"\xf0\x9f"]),
    data=st.data(),
)
@example(stops=["ab\n", "ab한"], text="aab한", tail=b"", data=None)
def test_stop_strings_and_utf8_any_cut_gives_what_the_definition_says(
    stops: list[str], text: str, tail: bytes, data: st.DataObject | None
) -> None:
    """Stops of 1 to 9 characters over token borders, some sharing a beginning, ids cut anywhere."""
    ids = text.encode() + tail
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=9))) if data else [1, 2]
    full = ids.decode(errors="replace")
    shown, stop = first_stop(stops, full)
    n_used = n_until(stops, ids)

    async def check() -> None:
        filled = FilledChoice()
        choice_text = text_of(filled, *stops, logprobs=True)
        pieces = list[Piece]()
        for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
            if end > start:
                filled.arrive(ids[start:end])
                pieces.append(await choice_text.read())
                so_far = "".join(piece.text for piece in pieces)
                assert shown.startswith(so_far)
                if pieces[-1].finish is not None:
                    break
        if not pieces or pieces[-1].finish is None:
            filled.end()
            pieces.append(await choice_text.read())
        assert "".join(piece.text for piece in pieces) == shown
        seen = [token_id for piece in pieces for token_id in piece.ids]
        assert bytes(seen) == ids[:n_used]
        assert [p.token_id for piece in pieces for p in piece.logprobs] == seen
        finish = Finish("length" if stop is None else "stop", stop, n_used)
        assert pieces[-1].finish == finish
        assert filled.cancelled == (stop is not None)

    asyncio.run(check())


async def test_choices_side_by_side_come_in_one_wake_up() -> None:
    filled = [FilledChoice() for _ in range(3)]
    arrivals = Arrivals([text_of(one) for one in filled])
    reading = asyncio.create_task(arrivals.read())
    await asyncio.sleep(0)
    filled[2].arrive(b"c")
    filled[0].arrive(b"a")
    assert [(index, piece.text) for index, piece in await reading] == [(2, "c"), (0, "a")]
    for one in filled:
        one.end()
    ends = await arrivals.read()
    assert sorted(index for index, _ in ends) == [0, 1, 2]
    assert await arrivals.read() == []


async def test_of_choices_side_by_side_the_first_failure_is_raised() -> None:
    filled = [FilledChoice() for _ in range(2)]
    collecting = asyncio.create_task(collect([text_of(one) for one in filled]))
    await asyncio.sleep(0)
    filled[1].fail(StepFailedError("no"))
    with pytest.raises(StepFailedError):
        await collecting


async def test_a_whole_choice_without_stops_wakes_its_reader_once() -> None:
    filled = FilledChoice()
    collecting = asyncio.create_task(collect([text_of(filled)]))
    await asyncio.sleep(0)
    for byte in b"abc":
        filled.arrive([byte])
        assert not collecting.done()
    filled.end()
    (whole,) = await collecting
    assert (whole.text, whole.ids, whole.finish.n_output) == ("abc", [97, 98, 99], 3)


async def test_a_whole_choice_ends_at_its_stop_string_and_not_later() -> None:
    filled = FilledChoice()
    collecting = asyncio.create_task(collect([text_of(filled, "bc")]))
    await asyncio.sleep(0)
    for byte in b"abcd":
        filled.arrive([byte])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    (whole,) = await collecting
    assert (whole.text, whole.ids) == ("a", [97, 98, 99])
    assert filled.cancelled


def test_choices_of_one_seed_have_seeds_of_their_own_and_the_first_has_it() -> None:
    seeds = [seed_of(seed, index) for seed in (0, 1, 2**64 - 1) for index in range(4)]
    assert seeds[::4] == [0, 1, 2**64 - 1]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)
