"""A choice whose state is kept ends where its stop string begins, and says so at its own end."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_client import EndReason
from wkvm_client.errors import StepFailedError

from tests.gateway.harness import byte_texts
from tests.gateway.scripted import FilledChoice
from wkvm.gateway.failures import HttpError
from wkvm.gateway.streams.pieces import ChoiceText, TextOptions
from wkvm.gateway.text import ByteTokenizer, Tokenizer
from wkvm.gateway.texts import Texts

TEXTS = byte_texts()
MOUSE = "🐭".encode()


class Joined(ByteTokenizer):
    """Bytes, and a token that ends a mouse and goes on."""

    def token_bytes(self, token_id: int) -> bytes:
        return MOUSE[3:] + b"n" if token_id == 256 else super().token_bytes(token_id)


class Cut:
    """A choice and where it was cut."""

    def __init__(self, *stops: str, texts: Texts = TEXTS, **more: object) -> None:
        self.filled = FilledChoice()
        self.kept = list[int]()
        options = TextOptions(stops=stops, **more)  # type: ignore[arg-type]
        self.text = ChoiceText(self.filled.choice, texts, options, cut=self.kept.append)


async def test_a_stop_string_ends_the_choice_where_it_begins() -> None:
    cut = Cut("ab!")
    cut.filled.arrive(b"xyab")
    assert (await cut.text.read()).text == "xy"
    cut.filled.arrive(b"!")
    piece = await cut.text.read()
    assert cut.kept == [2]
    assert (piece.text, piece.finish) == ("", None)
    assert not cut.filled.cancelled


async def test_the_last_piece_comes_with_the_end_and_nothing_that_came_meanwhile() -> None:
    cut = Cut("!")
    cut.filled.arrive(b"xy!")
    shown = (await cut.text.read()).text
    cut.filled.arrive(b"zz")
    assert (await cut.text.read()).text == ""
    cut.filled.end(EndReason.CANCELLED)
    last = await cut.text.read()
    assert (shown, last.text, last.ids) == ("xy", "", [])
    assert last.finish is not None
    assert (last.finish.reason, last.finish.stop_reason, last.finish.n_output) == ("stop", "!", 3)
    assert last.finish.n_excess == 0


async def test_a_choice_that_was_over_already_says_how_much_its_state_has_too_much() -> None:
    cut = Cut("ab!")
    cut.filled.arrive(b"xyab!")
    cut.filled.end()
    last = await cut.text.read()
    assert cut.kept == []
    assert last.finish is not None
    assert (last.text, last.finish.n_excess) == ("xy", 3)


async def test_a_choice_that_ends_by_itself_before_it_is_cut_says_so_too() -> None:
    cut = Cut("!")
    cut.filled.arrive(b"x!")
    await cut.text.read()
    cut.filled.arrive(b"yz")
    cut.filled.end(EndReason.STOP, stop_id=7)
    finish = (await cut.text.read()).finish
    assert finish is not None
    assert finish.n_excess == 1 + 2 + 1  # the stop string, what came after it, and the stop id


async def test_a_token_with_text_before_and_in_the_stop_string_is_not_kept(
    world: Tokenizer,
) -> None:
    cut = Cut("b", texts=Texts(world, TEXTS.template))
    ids = [*world.encode("x"), *world.encode("ab")]
    assert len(ids) == 2
    cut.filled.arrive(ids)
    assert (await cut.text.read()).text == "xa"
    assert cut.kept == [1]


async def test_what_is_no_whole_character_before_a_stop_string_is_kept_as_it_is_shown() -> None:
    cut = Cut("!")
    cut.filled.arrive(b"x" + MOUSE[:2])
    shown = (await cut.text.read()).text
    cut.filled.arrive(b"!")
    shown += (await cut.text.read()).text
    assert (shown, cut.kept) == ("x\ufffd", [3])


async def test_no_character_is_cut_in_two() -> None:
    """The last byte of a mouse is in one token with the stop string."""
    cut = Cut("n", texts=Texts(Joined(), TEXTS.template))
    cut.filled.arrive([*b"x", *MOUSE[:3]])
    await cut.text.read()
    cut.filled.arrive([256])
    assert (await cut.text.read()).text == "🐭"
    assert cut.kept == [1]


async def test_a_stop_string_that_is_part_of_the_answer_is_part_of_the_state() -> None:
    cut = Cut("!", include_stop=True)
    cut.filled.arrive(b"xy!z")
    assert (await cut.text.read()).text == "xy!"
    assert cut.kept == [3]


async def test_ids_before_the_least_number_are_kept() -> None:
    cut = Cut("!", min_tokens=2)
    cut.filled.arrive(b"!!x!")
    await cut.text.read()
    assert cut.kept == [3]


async def test_a_stop_string_at_the_beginning_leaves_the_prompt() -> None:
    cut = Cut("!")
    cut.filled.arrive(b"!")
    await cut.text.read()
    assert cut.kept == [0]


async def test_a_failure_after_a_stop_string_is_raised() -> None:
    cut = Cut("!")
    cut.filled.arrive(b"x!")
    await cut.text.read()
    cut.filled.fail(StepFailedError("no"))
    with pytest.raises(StepFailedError):
        await cut.text.read()


async def test_a_time_that_is_over_after_a_stop_string_is_an_error() -> None:
    cut = Cut("!")
    cut.filled.arrive(b"x!")
    await cut.text.read()
    cut.filled.end(EndReason.TIMED_OUT)
    with pytest.raises(HttpError, match="time was over"):
        await cut.text.read()


@given(data=st.binary(max_size=12), sizes=st.lists(st.integers(1, 3), max_size=12))
async def test_of_any_bytes_what_is_kept_is_what_is_shown(data: bytes, sizes: list[int]) -> None:
    cut, rest, shown = Cut("!"), data + b"!", ""
    for size in [*sizes, len(rest)]:
        part, rest = rest[:size], rest[size:]
        if not part:
            break
        cut.filled.arrive(part)
        shown += (await cut.text.read()).text
        if cut.kept:
            assert data[: cut.kept[0]].decode(errors="replace") == shown
            break


@given(text=st.text("ab한!", max_size=20), sizes=st.lists(st.integers(1, 4), max_size=30))
async def test_what_is_kept_is_the_text_that_is_shown(text: str, sizes: list[int]) -> None:
    """However it arrives: the ids that are kept spell what was shown, to the last id."""
    cut, data, shown = Cut("a!", "한b"), text.encode(), ""
    for size in [*sizes, len(data)]:
        part, data = data[:size], data[size:]
        if not part:
            break
        cut.filled.arrive(part)
        shown += (await cut.text.read()).text
        if cut.kept:
            assert text.encode()[: cut.kept[0]].decode() == shown
            break
