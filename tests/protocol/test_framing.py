import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wkvm_protocol.errors import ErrorCode, LocalProtocolError, RemoteProtocolError
from wkvm_protocol.framing import FrameReader, encode_frame

LIMIT = 40


def drain(reader: FrameReader) -> list[bytes]:
    return list(iter(reader.next_payload, None))


@given(payloads=st.lists(st.binary(min_size=1, max_size=LIMIT), max_size=8), data=st.data())
def test_chunking_never_matters(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame(p, limit=LIMIT) for p in payloads)
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=16).map(sorted))
    reader, seen = FrameReader(limit=LIMIT), list[bytes]()
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        seen += drain(reader)
    assert seen == payloads
    assert not reader.mid_frame
    assert reader.buffered_bytes == 0


def test_a_frame_is_a_little_endian_length_and_the_payload() -> None:
    assert encode_frame(b"abc", limit=3) == b"\3\0\0\0abc"
    assert encode_frame(b"x" * 258, limit=258)[:4] == b"\2\1\0\0"


@pytest.mark.parametrize("n_bytes", [1, LIMIT - 1, LIMIT])
def test_a_length_up_to_the_limit_passes_both_ways(n_bytes: int) -> None:
    reader = FrameReader(LIMIT)
    reader.feed(encode_frame(b"x" * n_bytes, LIMIT))
    assert reader.next_payload() == b"x" * n_bytes


@pytest.mark.parametrize("n_bytes", [0, LIMIT + 1])
def test_no_frame_is_made_that_the_peer_would_refuse(n_bytes: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_frame(b"x" * n_bytes, LIMIT)


@pytest.mark.parametrize(
    ("n_bytes", "code"),
    [
        (0, ErrorCode.PROTOCOL_VIOLATION),
        (LIMIT + 1, ErrorCode.FRAME_TOO_LARGE),
        (2**31 - 1, ErrorCode.FRAME_TOO_LARGE),
        (2**32 - 1, ErrorCode.FRAME_TOO_LARGE),
    ],
)
def test_a_bad_length_is_refused_before_its_payload_comes(n_bytes: int, code: ErrorCode) -> None:
    reader = FrameReader(LIMIT)
    reader.feed(n_bytes.to_bytes(4, "little"))
    with pytest.raises(RemoteProtocolError) as raised:
        reader.next_payload()
    assert raised.value.code == code


def test_after_a_bad_length_nothing_is_stored_and_nothing_returned() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(bytes(4))
    with pytest.raises(RemoteProtocolError):
        reader.next_payload()
    reader.feed(encode_frame(b"good", LIMIT))
    assert reader.buffered_bytes == 0
    with pytest.raises(RemoteProtocolError):
        reader.next_payload()


def test_frames_ahead_of_a_bad_length_are_returned() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(encode_frame(b"good", LIMIT) + bytes(4))
    assert reader.next_payload() == b"good"
    with pytest.raises(RemoteProtocolError):
        reader.next_payload()


def test_a_raised_limit_holds_for_the_next_frame_of_the_same_read() -> None:
    reader = FrameReader(4)
    reader.feed(encode_frame(b"four", 4) + encode_frame(b"x" * 9, 9))
    assert reader.next_payload() == b"four"
    reader.limit = 9
    assert reader.next_payload() == b"x" * 9


@pytest.mark.parametrize("n_fed", [1, 3, 4, 5, 7])
def test_a_started_frame_shows(n_fed: int) -> None:
    reader = FrameReader(LIMIT)
    reader.feed(encode_frame(b"abcd", LIMIT)[:n_fed])
    assert reader.next_payload() is None
    assert reader.mid_frame
    assert reader.buffered_bytes == n_fed


def test_a_frame_started_behind_a_whole_one_shows() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(encode_frame(b"abcd", LIMIT) + b"\1")
    assert drain(reader) == [b"abcd"]
    assert reader.mid_frame
    assert reader.buffered_bytes == 1


def test_payloads_are_objects_of_their_own() -> None:
    reader, data = FrameReader(LIMIT), bytearray(encode_frame(b"abcd", LIMIT))
    reader.feed(data)
    payload = reader.next_payload()
    data[4:] = b"....."
    reader.feed(encode_frame(b"efgh", LIMIT))
    assert payload == b"abcd"


def test_a_claimed_length_costs_no_memory() -> None:
    tracemalloc.start()
    try:
        reader = FrameReader(2**31)
        reader.feed((2**31).to_bytes(4, "little") + b"x" * 1000)
        assert reader.next_payload() is None
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_what_was_returned_is_not_kept() -> None:
    """Each read ends within a frame, so that the reader is never empty."""
    frame = encode_frame(b"x" * 1000, 1000)
    reader = FrameReader(1000)
    reader.feed(frame[:1])
    tracemalloc.start()
    try:
        for _ in range(1000):
            reader.feed(frame[1:] + frame[:1])
            assert len(drain(reader)) == 1
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024
    finally:
        tracemalloc.stop()


def test_an_answer_of_http_is_called_that() -> None:
    reader = FrameReader(LIMIT)
    reader.feed(b"HTTP/1.1 400 Bad Request")
    with pytest.raises(RemoteProtocolError, match="HTTP"):
        reader.next_payload()


def seconds_for(reads: list[bytes], limit: int) -> float:
    """Of this process alone, the best of a few: other work on the machine counts little."""
    best = 1e9
    for _ in range(4):
        reader = FrameReader(limit)
        start = time.process_time()
        for data in reads:
            reader.feed(data)
            drain(reader)
        best = min(best, time.process_time() - start)
    return best


def test_many_small_frames_in_one_read_cost_the_same_each() -> None:
    """32 times as many would take 1,024 times as long if each cost a copy of the rest."""
    frame = encode_frame(b"x" * 20, LIMIT)
    few, many = seconds_for([frame * 2_000], LIMIT), seconds_for([frame * 64_000], LIMIT)
    assert many < 32 * few * 8


def test_one_long_frame_in_many_reads_costs_the_same_each() -> None:
    """32 times as many would take 1,024 times as long if each cost a copy of what is there."""

    def reads(n: int) -> list[bytes]:
        stream = encode_frame(b"x" * (n * 1024), 1 << 30)
        return [stream[i : i + 1024] for i in range(0, len(stream), 1024)]

    few, many = seconds_for(reads(512), 1 << 30), seconds_for(reads(16_384), 1 << 30)
    assert many < 32 * few * 8
