"""States as one file in chunks: out, and in from a peer that sends anything."""

import json
import resource
import struct
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load

from tests.state.corpus import RECORDS
from tests.state.images import LARGE, an_image, same
from tests.state.random_images import image
from wkvm.core.errors import (
    BadStateFileError,
    PromptTooLongError,
    StateMismatchError,
    StateNotFiniteError,
    WkvmError,
)
from wkvm.core.registry import Carried, Provenance, SamplerMemory, canonical_json
from wkvm.state.exchange import MAX_TOKENS, Imported, Receiver, export_image
from wkvm.state.format import data_bytes, digest_of, encode_header, header_bytes
from wkvm.state.history import MAX_HISTORY_BYTES, History, decode_history, encode_history
from wkvm.state.image import StateImage
from wkvm.state.mutations import Mutations

VOCAB = 100
STATE, PAGED = image(3), image(3, kind="gdn+guest", n_computed=70)
EITHER = pytest.mark.parametrize("state", [STATE, PAGED], ids=["record", "pages"])


def file_of(state: StateImage = STATE, records: Sequence[Provenance] = RECORDS) -> bytes:
    return b"".join(export_image(state, records).chunks())


FILE = file_of()
N_HEADER = 8 + struct.unpack("<Q", FILE[:8])[0]


def received(
    file: bytes, *, n_chunk: int = 1000, n_bytes: int | None = None, like: StateImage = STATE
) -> Imported:
    announced = len(file) if n_bytes is None else n_bytes
    receiver = Receiver(announced, like.identity, like.layout, VOCAB)
    for at in range(0, len(file), n_chunk):
        receiver.feed(file[at : at + n_chunk])
    return receiver.finish()


@EITHER
@pytest.mark.parametrize("n_chunk", [1, 7, 8, 255, 4096, 10**6])
def test_a_state_comes_back_equal_however_it_is_cut(n_chunk: int, state: StateImage) -> None:
    found = received(file_of(state), n_chunk=n_chunk, like=state)
    assert same(found.image, state)
    assert found.history == History(records=RECORDS)


@given(cuts=st.lists(st.integers(0, len(FILE)), max_size=12).map(sorted))
def test_cuts_of_any_length_do_not_matter(cuts: list[int]) -> None:
    receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB)
    for start, end in zip([0, *cuts], [*cuts, len(FILE)], strict=True):
        receiver.feed(FILE[start:end])
    assert same(receiver.finish().image, STATE)


@EITHER
def test_an_export_of_an_import_has_the_same_bytes(state: StateImage) -> None:
    file = file_of(state)
    found = received(file, like=state)
    assert file_of(found.image, found.history.records) == file


@EITHER
def test_the_length_is_known_before_the_first_byte(state: StateImage) -> None:
    export = export_image(state, RECORDS)
    assert export.n_bytes == len(file_of(state)) == sum(map(len, export.chunks(100)))
    assert max(map(len, export.chunks(100))) == 100


@EITHER
def test_the_file_is_a_safetensors_file(state: StateImage) -> None:
    tensors = load(file_of(state))
    assert tensors.pop("wkvm.token_ids").tolist() == state.ids().tolist()
    assert tensors.keys() == state.views().keys()
    assert all(torch.equal(tensors[name], view) for name, view in state.views().items())


def test_padding_leaves_no_trace_in_an_export() -> None:
    dirty = STATE.record.clone()
    dirty[-1] = 7
    assert file_of(replace(STATE, record=dirty)) == FILE


def test_a_state_with_a_ring_comes_back_with_it() -> None:
    state = image(1, ring=True, waiting=3)
    state.view("rwkv7.ring").nan_to_num_(0)
    assert same(received(file_of(state), like=state).image, state)


@pytest.mark.parametrize("fill", [8, -1, 2**31 - 1])
def test_a_ring_that_claims_more_than_it_has_is_refused(fill: int) -> None:
    state = image(1, ring=True, waiting=7)
    state.view("rwkv7.ring").nan_to_num_(0)
    assert same(received(file_of(state), like=state).image, state)
    state.view("rwkv7.ring_fill").fill_(fill)
    with pytest.raises(BadStateFileError, match="ring_fill"):
        received(file_of(state), like=state)


@pytest.mark.parametrize("n_tokens", [0, 69, 71, -1])
def test_pages_of_another_number_of_tokens_are_refused(n_tokens: int) -> None:
    state = image(3, kind="gdn+guest", n_computed=70)
    state.view("guest.n_tokens").fill_(n_tokens)
    with pytest.raises(BadStateFileError, match="has absorbed 70"):
        received(file_of(state), like=state)


@pytest.mark.parametrize("number", [1.0, -0.0])
def test_pages_with_anything_behind_the_last_token_are_refused(number: float) -> None:
    state = image(3, kind="gdn+guest", n_computed=70)
    state.view("guest.pages")[1, 0, 1, 6, 2, 1] = number
    with pytest.raises(BadStateFileError, match="behind the last token"):
        received(file_of(state), like=state)


def test_a_header_that_promises_much_takes_no_memory_before_the_data() -> None:
    n_tokens = 2**24
    carried = Carried(n_computed=n_tokens, pending=(), sampler=None)
    header = encode_header(PAGED.identity, PAGED.layout, carried, "1" * 32)
    n_bytes = len(header) + data_bytes(PAGED.layout, n_tokens)
    assert n_bytes > 2**30
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    Receiver(n_bytes, PAGED.identity, PAGED.layout, VOCAB).feed(header)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB: the log


def test_every_flipped_bit_is_found() -> None:
    for at in range(len(FILE)):
        damaged = bytearray(FILE)
        damaged[at] ^= 1 << at % 8
        with pytest.raises((BadStateFileError, StateMismatchError)):
            received(bytes(damaged))


def test_a_file_that_ends_early_is_no_state() -> None:
    for end in range(0, len(FILE), 13):
        with pytest.raises(BadStateFileError, match="missing"):
            received(FILE[:end], n_bytes=len(FILE))


def test_a_file_that_is_longer_than_announced_is_refused_at_once() -> None:
    receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB)
    with pytest.raises(BadStateFileError, match="more bytes"):
        receiver.feed(FILE + b"\0")


@pytest.mark.parametrize("by", [-4, 4, 256])
def test_another_length_than_the_headers_is_refused_before_the_data(by: int) -> None:
    receiver = Receiver(len(FILE) + by, STATE.identity, STATE.layout, VOCAB)
    with pytest.raises(BadStateFileError, match="announced"):
        receiver.feed(FILE[:N_HEADER])


@pytest.mark.parametrize("n_bytes", [-1, 0, 100, 2**31, 2**63])
def test_a_length_that_no_state_has_is_refused_before_the_first_byte(n_bytes: int) -> None:
    with pytest.raises(BadStateFileError, match="announced"):
        Receiver(n_bytes, STATE.identity, STATE.layout, VOCAB)


@pytest.mark.parametrize("n_header", [0, 2**20 + 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_a_header_that_is_too_long_is_refused_by_its_first_eight_bytes(n_header: int) -> None:
    receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB)
    with pytest.raises(BadStateFileError, match="length of a header"):
        receiver.feed(struct.pack("<Q", n_header))


def test_a_receiver_that_refused_takes_no_more() -> None:
    receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB)
    with pytest.raises(BadStateFileError):
        receiver.feed(struct.pack("<Q", 0))
    with pytest.raises(BadStateFileError, match="refused"):
        receiver.feed(FILE[8:100])
    with pytest.raises(BadStateFileError):
        receiver.finish()


def foreign(**changed: str) -> StateImage:
    return replace(STATE, identity=replace(STATE.identity, **changed))


@pytest.mark.parametrize(
    "other",
    [
        foreign(model_digest="cc"),
        foreign(tokenizer_digest="cc"),
        image(3, "bfloat16"),
        an_image(3),
    ],
)
def test_a_foreign_state_is_refused_by_its_header(other: StateImage) -> None:
    file = file_of(other)
    n_header = 8 + struct.unpack("<Q", file[:8])[0]
    receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB)
    with pytest.raises(StateMismatchError):
        receiver.feed(file[:n_header])


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused_both_ways(bad: float) -> None:
    state = image(3)
    state.view("rwkv7.ffn_shift")[0, 0] = bad
    with pytest.raises(StateNotFiniteError):
        export_image(state)
    # A peer that does not check: the header and digest are right.
    header = json.loads(FILE[8:N_HEADER])
    data = bytearray(FILE[N_HEADER:])
    at = header["rwkv7.ffn_shift"]["data_offsets"][0]
    data[at : at + 4] = struct.pack("<f", bad)
    with pytest.raises(StateNotFiniteError):
        received(rewritten(lambda entries: None, bytes(data)))


def with_ids(*, log: int = 3, pending: int = 3, seen: int = 3, count: int = 3) -> StateImage:
    sampler = SamplerMemory(seed=1, branch=0, seen=(1, seen), counts=((count, 1.0),))
    return replace(
        STATE,
        carried=Carried(n_computed=5, pending=(pending,), sampler=sampler),
        token_ids=np.array([1, log, 2, 3, 4], dtype="<i4").tobytes(),
    )


@pytest.mark.parametrize("field", ["log", "pending", "seen", "count"])
def test_ids_beyond_the_vocabulary_are_refused(field: str) -> None:
    received(file_of(with_ids(**{field: VOCAB - 1})))
    with pytest.raises(BadStateFileError, match="an id"):
        received(file_of(with_ids(**{field: VOCAB})))


def test_negative_ids_are_refused() -> None:
    with pytest.raises(BadStateFileError, match="an id"):
        received(file_of(with_ids(log=-1)))


def header_of(file: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(file[8 : 8 + struct.unpack("<Q", file[:8])[0]])
    return found


def rewritten(
    change: Callable[[dict[str, Any]], None],
    data: bytes = FILE[N_HEADER:],
    entries: dict[str, Any] | None = None,
) -> bytes:
    """The file with another header and the digest that belongs to it: a peer that lies well.

    Args:
        entries: of the header that is changed; by default that of ``FILE``.
    """
    entries = header_of(FILE) if entries is None else entries
    change(entries)

    def written() -> bytes:
        text = canonical_json(entries).encode()
        text = text.ljust(-(-(8 + len(text)) // 256) * 256 - 8)
        return struct.pack("<Q", len(text)) + text

    if isinstance(metadata := entries.get("__metadata__"), dict):
        metadata["wkvm.digest"] = "0" * 32
        metadata["wkvm.digest"] = digest_of(written(), [memoryview(data)])
    return written() + data


VALUES: list[Any] = [None, 0, -1, 2**70, True, 1.5, "", "F64", "x" * 5000, [], [0], {}, [[[[]]]]]


def places(entries: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a header has a value."""
    found = [path] if path else []
    if isinstance(entries, list):
        entries = dict(enumerate(entries))
    if isinstance(entries, dict):
        for step, value in entries.items():
            found += places(value, (*path, step))
    return found


PLACES = [
    (state, path)
    for state, only in ((STATE, ""), (PAGED, "guest.pages"))
    for path in places(header_of(file_of(state)))
    if path[0].startswith(only)
]


@pytest.mark.parametrize(("state", "path"), PLACES, ids=lambda one: str(one)[:60])
def test_a_header_with_another_value_anywhere_is_refused(
    state: StateImage, path: tuple[Any, ...]
) -> None:
    for value in VALUES:

        def change(entries: Any, value: Any = value) -> None:
            for step in path[:-1]:
                entries = entries[step]
            if entries[path[-1]] != value:
                entries[path[-1]] = value
            else:
                del entries[path[-1]]

        if path[-1] == "wkvm.digest":
            continue
        file = file_of(state)
        data = file[8 + struct.unpack("<Q", file[:8])[0] :]
        with pytest.raises((BadStateFileError, StateMismatchError)):
            received(rewritten(change, data, header_of(file)), like=state)


def corrupted(text: bytes, random: np.random.Generator) -> bytes:
    """A header's text with a few bytes changed, removed, doubled, or taken from elsewhere in it."""
    result = bytearray(text)
    for _ in range(int(random.integers(1, 4))):
        at, n = int(random.integers(len(result))), int(random.integers(1, 9))
        match int(random.integers(4)):
            case 0:
                result[at] = int(random.integers(32, 127))
            case 1:
                del result[at : at + n]
            case 2:
                result[at:at] = result[at : at + n]
            case _:
                other = int(random.integers(len(result)))
                result[at : at + n] = result[other : other + n]
    return bytes(result)


def test_headers_with_changed_text_are_refused_with_a_typed_error() -> None:
    random = np.random.default_rng(1)
    text, data = FILE[8:N_HEADER].rstrip(), FILE[N_HEADER:]
    for _ in range(20_000):
        changed = corrupted(text, random)
        if changed == text:
            continue
        changed = changed.ljust(-(-(8 + len(changed)) // 256) * 256 - 8)
        file = struct.pack("<Q", len(changed)) + changed + data
        with pytest.raises((BadStateFileError, StateMismatchError)):
            received(file, n_chunk=10**6)


def test_a_header_without_a_value_is_refused() -> None:
    for path in places(header_of(FILE)):

        def change(entries: Any, path: tuple[Any, ...] = path) -> None:
            for step in path[:-1]:
                entries = entries[step]
            del entries[path[-1]]

        if path[-1] in ("wkvm.digest", "wkvm.history"):
            continue
        with pytest.raises((BadStateFileError, StateMismatchError)):
            received(rewritten(change))


def test_a_rewritten_header_that_is_true_is_read() -> None:
    # Or the tests above would show nothing.
    assert same(received(rewritten(lambda entries: None)).image, STATE)


@pytest.mark.parametrize("digest", [None, 0, True, [], "", "0" * 31, "g" * 32])
def test_a_digest_that_is_none_is_refused(digest: Any) -> None:
    entries = json.loads(FILE[8:N_HEADER])
    entries["__metadata__"]["wkvm.digest"] = digest
    text = canonical_json(entries).encode()
    text = text.ljust(-(-(8 + len(text)) // 256) * 256 - 8)
    with pytest.raises(BadStateFileError):
        received(struct.pack("<Q", len(text)) + text + FILE[N_HEADER:])


def _fed(receiver: Receiver, file: bytes) -> Receiver:
    receiver.feed(file)
    return receiver


@given(raw=st.binary(max_size=300))
@settings(max_examples=200)
def test_any_bytes_are_refused_with_a_typed_error(raw: bytes) -> None:
    for file in (raw, struct.pack("<Q", len(raw)) + raw):
        receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB)
        with pytest.raises(WkvmError):
            _fed(receiver, file).finish()


def test_a_receiver_holds_one_record_and_the_log() -> None:
    state = an_image(2, layout=LARGE)
    file = file_of(state)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    receiver = Receiver(len(file), state.identity, LARGE, VOCAB)
    for at in range(0, len(file), 2**18):
        receiver.feed(memoryview(file)[at : at + 2**18])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak - before < len(state.record) + len(state.token_ids) + 200_000
    assert same(receiver.finish().image, state)


def test_a_token_log_has_a_limit() -> None:
    assert MAX_TOKENS == 2**24
    receiver = Receiver(len(FILE), STATE.identity, STATE.layout, VOCAB, max_tokens=4)
    with pytest.raises(PromptTooLongError, match="4 tokens"):
        receiver.feed(FILE)


@EITHER
def test_a_state_too_long_for_its_place_is_not_called_damaged_and_its_data_never_comes(
    state: StateImage,
) -> None:
    file, n_tokens = file_of(state), state.carried.n_computed
    receiver = Receiver(len(file), state.identity, state.layout, VOCAB, max_tokens=n_tokens - 1)
    with pytest.raises(PromptTooLongError, match=f"{n_tokens - 1} tokens, which {n_tokens}"):
        receiver.feed(file[: header_bytes(file)])


def test_of_a_long_history_the_newest_part_is_told() -> None:
    records = [replace(RECORDS[1], n_after=n) for n in range(5000)]
    text = encode_history(records)
    assert len(text) <= MAX_HISTORY_BYTES
    found = decode_history(text)
    assert 500 < len(found.records) < 5000
    assert found.records == tuple(records[-len(found.records) :])
    assert found.omitted == 5000 - len(found.records)
    assert received(file_of(records=records)).history == found


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[]",
        "{}",
        '{"omitted":0,"records":[{}]}',
        '{"omitted":-1,"records":[]}',
        '{"omitted":1,"records":[],"more":1}',
        '{"omitted": 1,"records":[]}',
        "[" * 100_000,
        " " * (MAX_HISTORY_BYTES + 1),
    ],
)
def test_what_is_no_history_is_refused(text: str) -> None:
    with pytest.raises(BadStateFileError):
        decode_history(text)


def test_a_mutations_record_travels_and_can_be_replayed() -> None:
    done = Mutations().apply("noise", {"deviation": 1, "seed": 4}, [STATE])
    (found,) = received(file_of(done.image, [done.provenance])).history.records
    again = Mutations().replay(found, [STATE])
    assert torch.equal(again.image.record, done.image.record)
