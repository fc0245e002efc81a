"""Frames that lie, explode or contradict themselves: rows 2, 3 and 4 of the threat table."""

import gc
from typing import Any

import msgspec
import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    Generate,
    Sampling,
    pack_ids,
)

from tests.server.harness import RawClient, Rig, frame, rss_bytes, serving, tcp_config

MIB = 2**20


async def connected(rig: Rig, *, is_open: bool) -> RawClient:
    return await rig.client() if is_open else await rig.connect()


@pytest.mark.parametrize(
    ("is_open", "cap"), [(False, MAX_HELLO_FRAME_BYTES), (True, MAX_FRAME_BYTES)]
)
async def test_a_length_is_checked_before_anything_is_stored(is_open: bool, cap: int) -> None:
    async with serving() as rig:
        await rig.assert_alive()
        gc.collect()
        for length, code in (
            (0, ErrorCode.PROTOCOL_VIOLATION),
            (cap, None),
            (cap + 1, ErrorCode.FRAME_TOO_LARGE),
            (2**31 - 1, ErrorCode.FRAME_TOO_LARGE),
            (2**32 - 1, ErrorCode.FRAME_TOO_LARGE),
        ):
            grown = list[int]()  # what is stored for it is there each time, anything else is not
            for _ in range(3):
                client = await connected(rig, is_open=is_open)
                before = rss_bytes()
                client.write(frame(b"\x90" * 1000, length))
                if code is not None:
                    assert (await client.error()).code == code
                await rig.assert_alive()
                grown.append(rss_bytes() - before)
                client.abort()
            assert min(grown) < MIB, length
        await rig.assert_idle()


@pytest.mark.parametrize("byte", [b"\x90", b"\x91", b"\xdd", b"\xc1", b"\x00"])
async def test_a_frame_full_of_one_byte_is_refused_in_little_memory(byte: bytes) -> None:
    payload = byte * MAX_FRAME_BYTES
    async with serving() as rig:
        client = await rig.client()
        before = rss_bytes()
        client.write(frame(payload))
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        assert rss_bytes() - before < 16 * MIB
        await rig.assert_alive()


async def test_16_mib_of_empty_arrays_are_not_waited_for_and_not_stored() -> None:
    bomb = frame(b"\xdd\x01\x00\x00\x00" + b"\x90" * (16 * MIB - 5))
    async with serving(tcp_config(frame_timeout_s=3600)) as rig:
        client = await rig.client()
        before = rss_bytes()
        client.write(bomb[:MIB])
        assert (await client.error()).code == ErrorCode.FRAME_TOO_LARGE
        assert rss_bytes() - before < 32 * MIB
        await rig.assert_alive()


async def test_the_reason_arrives_though_much_input_was_not_read() -> None:
    async with serving(tcp_config()) as rig:
        client = await rig.client()
        client.write(frame(b"\x90" * (4 * MIB)))
        assert (await client.error()).code == ErrorCode.FRAME_TOO_LARGE


async def test_deep_nesting_is_a_violation_and_no_crash() -> None:
    for nested in (b"\x91" * 100_000, b"\x81\xa0" * 100_000, b"\x92\x01" * 100_000):
        async with serving() as rig:
            client = await rig.client()
            client.write(frame(nested))
            assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
            await rig.assert_alive()


@pytest.mark.parametrize(
    "message",
    [
        [0x10],  # fields are missing
        [0x10, 1, b"\1\0\0\0", [], 0, 0, 0, 0],  # one too many
        [0x10, -1, b"\1\0\0\0"],
        [0x10, 2**32, b"\1\0\0\0"],
        [0x10, True, b"\1\0\0\0"],
        [0x10, 1.0, b"\1\0\0\0"],
        [0x10, 1, "text"],
        [0x10, 1, [1, 2, 3]],
        [0x10, 1, b"\1\0\0"],
        [0x10, 1, b"\1\0\0\0", [1.0, 2.0]],  # top_k is an integer
        [0x10, 1, b"\1\0\0\0", ["1.0"]],
        [0x10, 1, b"\1\0\0\0", {"temperature": 1.0}],
        [0x12, 1, 0],  # no credit at all
        [0x12, 1, 2**31],
        [0x18, b"\1\0\0\0", b"\1\0\0\0"],  # only servers send Tokens
        [0x20, 1],  # reserved
        {"type": 0x10},
        "Generate",
        None,
    ],
)
async def test_a_message_of_the_wrong_shape_ends_its_connection_and_no_other(message: Any) -> None:
    async with serving() as rig:
        client = await rig.client()
        lane = client.start(max_tokens=10**6)
        client.write(frame(msgspec.msgpack.encode(message)))
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        assert lane
        await rig.assert_idle()
        await rig.assert_alive()


async def test_a_second_hello_is_a_violation() -> None:
    async with serving() as rig:
        client = await rig.connect()
        hello = client.wire.send_hello()
        client.write(hello + hello)
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        await rig.assert_alive()


async def test_a_request_may_come_one_byte_at_a_time() -> None:
    async with serving() as rig:
        client = await rig.client()
        for byte in client.wire.send(Generate(1, pack_ids([1, 2, 3]), Sampling(max_tokens=3))):
            client.write(bytes([byte]))
            await client.writer.drain()
        assert (await client.answer(1)).ends
