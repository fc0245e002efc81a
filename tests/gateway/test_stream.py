"""Ids to text as they come, and stop strings."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from wkvm.gateway.text import (
    ByteTokenizer,
    IncrementalDecoder,
    StopStrings,
    StopText,
    TextStream,
    Tokenizer,
)

WORDS = "🐭👨‍👩‍👧 한국어 é€ plain"


def stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True) -> list[str]:
    decoder = IncrementalDecoder(tokenizer, skip_special=skip_special)
    return [*[decoder.feed([token_id]) for token_id in ids], decoder.flush()]


@pytest.mark.parametrize("text", list(WORDS))
def test_incomplete_utf8_is_held_back_until_the_character_is_complete(text: str) -> None:
    ids = list(text.encode())
    assert stream(ByteTokenizer(), ids) == [*[""] * (len(ids) - 1), text, ""]


def test_forced_byte_tokens_give_no_replacement_characters(bundled: Tokenizer) -> None:
    """Each id is one byte, as when a request allows nothing else."""
    of_byte = {bundled.token_bytes(i): i for i in range(bundled.vocab_size)}
    ids = [of_byte[bytes((byte,))] for byte in WORDS.encode()]
    deltas = stream(bundled, ids)
    assert "".join(deltas) == WORDS
    assert not any("\ufffd" in delta for delta in deltas)


@pytest.mark.parametrize(
    ("data", "deltas"),
    [
        (b"\xff", ["\ufffd", ""]),
        (b"\x80", ["\ufffd", ""]),
        (b"\xf0\x9f\x90", ["", "", "", "\ufffd"]),
        (b"\xf0\x9fa", ["", "", "\ufffda", ""]),
        (b"\xe0\x80", ["", "\ufffd\ufffd", ""]),
        (b"\xf4\x90", ["", "\ufffd\ufffd", ""]),
        (b"\xc3\xc3\xa9", ["", "\ufffd", "é", ""]),
    ],
)
def test_bytes_become_replacement_characters_as_soon_as_they_are_certainly_invalid(
    data: bytes, deltas: list[str]
) -> None:
    assert stream(ByteTokenizer(), list(data)) == deltas


@given(
    pieces=st.lists(
        st.binary(max_size=4) | st.sampled_from(list(WORDS)).map(str.encode), max_size=12
    ),
    data=st.data(),
)
@example(pieces=[b"\xf0\x9f", b"\x90\xad"], data=None)
@example(pieces=[b"\xed\xa0"], data=None)
def test_deltas_concatenate_to_the_full_text(
    pieces: list[bytes], data: st.DataObject | None
) -> None:
    tokenizer, ids = ByteTokenizer(), list(b"".join(pieces))
    cuts = data.draw(st.lists(st.integers(0, len(ids)), max_size=8)) if data else range(len(ids))
    decoder, deltas, at = IncrementalDecoder(tokenizer), list[str](), 0
    for cut in [*sorted(cuts), len(ids)]:
        deltas.append(decoder.feed(ids[at:cut]))
        at = cut
    assert "".join([*deltas, decoder.flush()]) == tokenizer.decode(ids)


@given(ids=st.lists(st.integers(0, 4095), max_size=20), skip_special=st.booleans())
def test_any_ids_stream_to_their_full_text(
    bundled: Tokenizer, ids: list[int], skip_special: bool
) -> None:
    deltas = stream(bundled, ids, skip_special=skip_special)
    assert "".join(deltas) == bundled.decode(ids, skip_special=skip_special)


def test_special_tokens_are_skipped_or_named(bundled: Tokenizer) -> None:
    ids = [*bundled.encode("hi"), 1]
    assert "".join(stream(bundled, ids)) == "hi"
    assert "".join(stream(bundled, ids, skip_special=False)) == "hi<|end|>"


def test_ids_that_pad_the_vocabulary_have_no_text(bundled: Tokenizer) -> None:
    ids = [*bundled.encode("hi"), 4096, *bundled.encode(" there")]
    assert "".join(stream(bundled, ids)) == IncrementalDecoder(bundled).feed(ids) == "hi there"


def test_what_one_decoder_shows_of_a_special_token_another_still_skips(bundled: Tokenizer) -> None:
    for skip_special, text in ((False, "<|end|>"), (True, ""), (False, "<|end|>")):
        assert IncrementalDecoder(bundled, skip_special=skip_special).feed([1]) == text


def test_an_id_that_is_text_by_itself_completes_a_character_when_one_has_begun() -> None:
    tokenizer = ByteTokenizer()
    assert IncrementalDecoder(tokenizer).feed([0x82]) == "\ufffd"
    decoder = IncrementalDecoder(tokenizer)
    assert [decoder.feed([byte]) for byte in "€".encode()] == ["", "", "€"]


def test_after_flush_a_decoder_starts_anew() -> None:
    decoder = IncrementalDecoder(ByteTokenizer())
    decoder.feed([0xE2])
    assert decoder.flush() == "\ufffd"
    assert decoder.feed([0x41]) == "A"


def matched(stops: list[str], deltas: list[str]) -> tuple[list[str], str | None]:
    """What a reader sees of each delta, with what is left at the end, and the stop."""
    matcher, seen = StopStrings(stops), list[str]()
    for delta in deltas:
        found = matcher.feed(delta)
        seen.append(found.text)
        if found.stop is not None:
            return seen, found.stop
    return [*seen, matcher.flush()], None


def test_a_stop_split_over_tokens_is_found_and_does_not_leak() -> None:
    assert matched(["\n\nUser:"], ["Hi", "!\n", "\nUs", "er", ": x"]) == (
        ["Hi", "!", "", "", ""],
        "\n\nUser:",
    )


def test_only_a_proper_beginning_of_a_stop_is_held() -> None:
    assert matched(["abc"], ["xab", "xa", "bb", "ab"]) == (
        ["x", "abx", "abb", "", "ab"],
        None,
    )


@pytest.mark.parametrize(
    ("deltas", "text", "stop"),
    [
        (["x", "#", "#", "#", "e"], "x", "###e"),
        (["x#", "##", "s"], "x", "###s"),
        (["x###", "##e"], "x##", "###e"),
        (["x###", "!"], "x###!", None),
    ],
)
def test_two_stops_that_share_a_beginning(deltas: list[str], text: str, stop: str | None) -> None:
    seen, found = matched(["###e", "###s"], deltas)
    assert ("".join(seen), found) == (text, stop)


def test_the_stop_that_is_complete_first_wins() -> None:
    assert matched(["abcd", "bc"], ["abcd"]) == (["a"], "bc")


def test_of_stops_complete_at_one_place_the_longer_wins() -> None:
    assert matched(["b", "ab"], ["xab"]) == (["x"], "ab")


def test_a_stop_within_a_character_of_several_bytes_is_no_stop() -> None:
    decoder, matcher = IncrementalDecoder(ByteTokenizer()), StopStrings(["\ufffd"])
    seen = [matcher.feed(decoder.feed([byte])) for byte in "🐭".encode()]
    assert [found.stop for found in seen] == [None] * 4


def test_without_stops_nothing_is_held() -> None:
    assert matched([], ["a", "b"]) == (["a", "b", ""], None)


def test_an_empty_stop_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopStrings([""])


STOPS = st.lists(st.text("ab\n한", min_size=2, max_size=9), min_size=1, max_size=3)


@given(stops=STOPS, text=st.text("ab\n한", max_size=40), data=st.data())
def test_how_the_text_is_cut_never_matters(
    stops: list[str], text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=10)))
    deltas = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    seen, found = matched(stops, deltas)
    assert ("".join(seen), found) == first_stop(stops, text)


@given(stops=STOPS, text=st.text("ab\n한", max_size=40))
def test_nothing_is_shown_that_may_still_become_a_stop_and_nothing_else_held(
    stops: list[str], text: str
) -> None:
    matcher, shown = StopStrings(stops), ""
    for end, character in enumerate(text, start=1):
        found = matcher.feed(character)
        shown += found.text
        if found.stop is not None:
            break
        held = text[len(shown) : end]
        assert not held or any(s.startswith(held) and s != held for s in stops)
        assert not any(s.startswith(text[at:end]) for at in range(len(shown)) for s in stops)


def first_stop(stops: list[str], text: str) -> tuple[str, str | None]:
    """The definition: the shortest beginning of ``text`` that ends in a stop."""
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end - len(stop)], stop
    return text, None


def test_a_text_stream_shows_whole_characters_up_to_the_stop() -> None:
    stream = TextStream(ByteTokenizer(), ["한x"])
    shown = [stream.feed([byte]) for byte in "🐭한한xyz".encode()]
    assert "".join(found.text for found in shown) == "🐭한"
    assert [found.stop for found in shown if found.stop] == [stream.stop] == ["한x"]
    assert stream.flush() == StopText("")


@given(st.lists(st.integers(1, 4), max_size=9))
def test_a_text_stream_looks_for_no_stop_in_its_first_ids(cuts: list[int]) -> None:
    stream, ids = TextStream(ByteTokenizer(), ["ab"], min_tokens=3), list(b"ababab")
    shown = ""
    for n in [*cuts, len(ids)]:
        shown += stream.feed(ids[:n]).text
        del ids[:n]
    assert (shown, stream.stop) == ("abab", "ab")


def test_a_text_stream_gives_what_was_held_when_it_ends() -> None:
    stream = TextStream(ByteTokenizer(), ["abc"])
    assert stream.feed(b"xab\xe2") == StopText("x")
    assert stream.flush() == StopText("ab\ufffd")


def test_a_stop_can_be_complete_at_the_very_end() -> None:
    stream = TextStream(ByteTokenizer(), ["a\ufffd"])
    assert stream.feed(b"xa\xe2") == StopText("x")
    assert stream.flush() == StopText("", "a\ufffd")
    assert stream.stop == "a\ufffd"
