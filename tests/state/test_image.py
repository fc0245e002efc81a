"""Facts about images and their files."""

import json
import struct
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load

from tests.state.images import KINDS, LARGE, LAYOUT, PAGED, an_image, identity_of, same
from wkvm.core.errors import BadStateFileError, StateMismatchError
from wkvm.core.layout import StateLayout
from wkvm.core.registry import Carried, canonical_json
from wkvm.state.format import CHUNK_BYTES, chunks_of, decode_header, digest_of, encode_header
from wkvm.state.guest import tail_of
from wkvm.state.image import (
    StateImage,
    clear_padding,
    decode_image,
    encode_image,
    pack_ids,
    unpack_ids,
)

EITHER = pytest.mark.parametrize("of", KINDS.values(), ids=KINDS)

FILE = encode_image(an_image(5)).tobytes()
N_HEADER = 8 + struct.unpack("<Q", FILE[:8])[0]


@EITHER
@pytest.mark.parametrize("n_tokens", [0, 1, 64, 65, 1000])
def test_an_image_comes_back_from_its_file_equal(n_tokens: int, of: StateLayout) -> None:
    image = an_image(5, n_tokens=n_tokens, layout=of)
    assert same(decode_image(encode_image(image).tobytes()), image)


@pytest.mark.parametrize(
    ("of", "content_id"),
    [
        (LAYOUT, "966bec745227a7cc80757e7a4f1baa501829ad745fab598a341165addd60630c"),
        (PAGED, "43090fae8ab1e55fa00c7823320e71514adac1cdba384e6c0bf966f9f6c9756e"),
    ],
    ids=KINDS,
)
def test_the_file_of_a_state_never_has_other_bytes(of: StateLayout, content_id: str) -> None:
    assert encode_image(an_image(5, layout=of)).content_id == content_id


@EITHER
def test_a_file_is_a_safetensors_file_with_the_tensors_and_the_token_log(of: StateLayout) -> None:
    image = an_image(5, n_tokens=4, layout=of)
    tensors = load(encode_image(image).tobytes())
    assert tensors.pop("wkvm.token_ids").tolist() == [5, 6, 7, 8]
    assert tensors.keys() == image.views().keys()
    assert all(torch.equal(tensors[name], view) for name, view in image.views().items())


def test_equal_images_have_equal_files_and_what_is_carried_makes_a_difference() -> None:
    one, twin, other = (encode_image(an_image(5, branch=branch)) for branch in (1, 1, 2))
    assert (one.content_id, one.digest) == (twin.content_id, twin.digest)
    assert one.content_id != other.content_id
    assert one.digest != other.digest


@EITHER
def test_padding_is_not_in_a_file_and_comes_back_as_zeros(of: StateLayout) -> None:
    image = an_image(5, layout=of)
    dirty = image.record.clone()
    image_bytes = encode_image(image).tobytes()
    dirty[of.record_bytes - 1] = 7
    twin = StateImage(
        identity=image.identity,
        layout=of,
        carried=image.carried,
        token_ids=image.token_ids,
        record=dirty,
    )
    assert encode_image(twin).tobytes() == image_bytes
    assert same(decode_image(encode_image(twin).tobytes()), image)
    clear_padding(of, dirty)
    assert torch.equal(dirty, image.record)


@EITHER
def test_every_flipped_bit_of_a_file_is_found(of: StateLayout) -> None:
    file = encode_image(an_image(5, layout=of)).tobytes()
    for at in range(len(file)):
        damaged = bytearray(file)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(BadStateFileError):
            decode_image(bytes(damaged))


def test_a_file_that_ends_early_or_late_is_found() -> None:
    for n in range(len(FILE)):
        with pytest.raises(BadStateFileError):
            decode_image(FILE[:n])
    with pytest.raises(BadStateFileError):
        decode_image(FILE + b"\0")


@given(raw=st.binary(max_size=400), n=st.integers(0, 2**64 - 1))
def test_any_bytes_are_a_state_or_a_typed_error(raw: bytes, n: int) -> None:
    for file in (raw, struct.pack("<Q", n) + raw, struct.pack("<Q", len(raw)) + raw):
        with pytest.raises(BadStateFileError):
            decode_image(file)


def rewritten(change: Any, file: bytes = FILE) -> bytes:
    """The file with another header, and the digest that belongs to it."""
    n_header = 8 + struct.unpack("<Q", file[:8])[0]
    entries, data = json.loads(file[8:n_header]), file[n_header:]
    change(entries)
    metadata = entries["__metadata__"]
    if isinstance(metadata, dict):
        metadata["wkvm.digest"] = "0" * 32
        metadata["wkvm.digest"] = digest_of(written(entries), [memoryview(data)])
    return written(entries) + data


def written(entries: dict[str, Any]) -> bytes:
    text = canonical_json(entries).encode()
    text = text.ljust(-(-(8 + len(text)) // 256) * 256 - 8)
    return struct.pack("<Q", len(text)) + text


def test_a_rewritten_header_that_is_true_is_read() -> None:
    assert same(decode_image(rewritten(lambda entries: None)), an_image(5))


def _set(*path: str, to: Any) -> Any:
    def change(entries: dict[str, Any]) -> None:
        at: Any = entries
        for step in path[:-1]:
            at = at[step]
        at[path[-1]] = to

    return change


HUGE = {"dtype": "F32", "shape": [2**60, 2**60], "data_offsets": [0, 120]}


@pytest.mark.parametrize(
    "change",
    [
        _set("toy.matrix", "shape", to=[2, 5, 3]),
        _set("toy.matrix", "shape", to=[30]),
        _set("toy.matrix", "shape", to=[2, 3, 5, 1.0]),
        _set("toy.matrix", "dtype", to="I32"),
        _set("toy.matrix", "dtype", to="F64"),
        _set("toy.matrix", "data_offsets", to=[0, 119]),
        _set("toy.matrix", "data_offsets", to=[1, 121]),
        _set("toy.matrix", "more", to=1),
        _set("toy.matrix", to=HUGE),
        _set("toy.matrix", to=None),
        _set("other", to={"dtype": "F32", "shape": [1], "data_offsets": [142, 146]}),
        _set("wkvm.token_ids", "shape", to=[2]),
        _set("wkvm.token_ids", "dtype", to="F32"),
        _set("__metadata__", "wkvm.format", to="2"),
        _set("__metadata__", "more", to="x"),
        _set("__metadata__", "wkvm.identity", to="{}"),
        _set("__metadata__", "wkvm.carried", to="[" * 100_000),
        _set("__metadata__", to=[]),
        lambda entries: entries.pop("toy.shift"),
        lambda entries: entries.pop("wkvm.token_ids"),
    ],
)
def test_a_header_that_lies_is_refused_though_its_digest_is_right(change: Any) -> None:
    with pytest.raises(BadStateFileError):
        decode_image(rewritten(change))


def test_a_header_of_another_length_is_refused_before_it_is_read() -> None:
    with pytest.raises(BadStateFileError):
        decode_image(struct.pack("<Q", 2**20 + 1) + b" " * 2**21)


def test_pieces_of_a_chunk_do_not_change_a_digest() -> None:
    data = bytes(range(256)) * 10_000
    whole = memoryview(data)
    cut = [whole[:7], whole[7:7], whole[7 : CHUNK_BYTES + 3], whole[CHUNK_BYTES + 3 :]]
    assert digest_of(b"x", cut) == digest_of(b"x", [whole])
    assert [sum(map(len, chunk)) for chunk in chunks_of(cut)] == [
        CHUNK_BYTES,
        CHUNK_BYTES,
        len(data) - 2 * CHUNK_BYTES,
    ]


def test_a_large_image_comes_back_equal() -> None:
    image = an_image(1, layout=LARGE)
    assert same(decode_image(encode_image(image).tobytes()), image)


@EITHER
def test_a_header_comes_back_equal(of: StateLayout) -> None:
    image, identity = an_image(3, layout=of), identity_of(of)
    header = decode_header(encode_header(identity, of, image.carried))
    assert (header.identity, header.layout, header.carried) == (identity, of, image.carried)
    page_bytes = 0 if of.guest is None else of.guest.page_bytes
    assert header.data_bytes == of.payload_bytes + page_bytes + 12


def test_a_file_with_pages_has_them_between_the_tensors_and_the_token_log() -> None:
    image = an_image(5, n_tokens=130, layout=PAGED)
    file = encode_image(image).tobytes()
    pages = load(file)["guest.pages"]
    assert pages.shape == (3, 2, 2, 64, 1, 2)
    at = len(file) - 4 * 130 - 3 * 1024
    assert file[at : at + 3 * 1024] == image.record[PAGED.record_bytes :].numpy().tobytes()


@pytest.mark.parametrize("field", ["shape", "dtype", "data_offsets", "page"])
def test_a_header_that_lies_about_its_pages_is_refused(field: str) -> None:
    file = encode_image(an_image(5, layout=PAGED)).tobytes()
    lies = {
        "shape": _set("guest.pages", "shape", to=[2, 2, 2, 64, 1, 2]),
        "dtype": _set("guest.pages", "dtype", to="F32"),
        "data_offsets": _set("guest.pages", "data_offsets", to=[0, 1024]),
        "page": _set("guest.pages", "shape", to=[1, 2, 2, 32, 1, 4]),
    }
    with pytest.raises(BadStateFileError):
        decode_image(rewritten(lies[field], file))


@pytest.mark.parametrize(("n_tokens", "n_behind"), [(0, 0), (64, 0), (1, 63), (65, 63), (127, 1)])
def test_the_tail_is_what_the_last_page_has_behind_the_last_token(
    n_tokens: int, n_behind: int
) -> None:
    image = an_image(5, n_tokens=n_tokens, layout=PAGED)
    tail = tail_of(PAGED, image.record, n_tokens)
    assert (0 if tail is None else tail.shape[2]) == n_behind


def test_what_lies_behind_the_last_token_is_found_even_if_it_is_a_negative_zero() -> None:
    image = an_image(5, layout=PAGED)
    image.check_tail()
    image.view("guest.pages")[-1, 1, 1, 3, 0, 1] = -0.0
    with pytest.raises(ValueError, match="more than 3 tokens"):
        image.check_tail()


@EITHER
def test_an_image_that_contradicts_itself_cannot_be_made(of: StateLayout) -> None:
    image = an_image(1, layout=of)
    parts: dict[str, Any] = {name: getattr(image, name) for name in StateImage.__slots__}
    for change in (
        {"record": image.record[:-1]},
        {"record": image.record.view(torch.int8)},
        {"token_ids": b"1234"},
        {"carried": Carried(n_computed=4)},
        {"identity": identity_of(LARGE)},
    ):
        with pytest.raises(ValueError, match=r".+"):
            StateImage(**parts | change)


def test_a_tensor_that_is_not_finite_is_named() -> None:
    image = an_image(1)
    assert image.first_non_finite() is None
    image.view("toy.shift")[3] = float("inf")
    assert image.first_non_finite() == "toy.shift"


def test_a_state_of_another_model_does_not_fit() -> None:
    an_image().check_fits(identity_of(LAYOUT))
    with pytest.raises(StateMismatchError) as caught:
        an_image().check_fits(identity_of(LAYOUT, model="ef" * 32))
    assert caught.value.what == "model_digest"


@given(ids=st.lists(st.integers(0, 2**31 - 1)))
def test_packed_ids_are_little_endian_and_come_back(ids: list[int]) -> None:
    assert pack_ids(ids) == b"".join(struct.pack("<i", one) for one in ids)
    assert unpack_ids(pack_ids(ids)).tolist() == ids
