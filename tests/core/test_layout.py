import pytest

from wkvm.core.layout import (
    ALIGNMENT,
    GUEST_TOKENS,
    ITEM_BYTES,
    PAGE_TOKENS,
    GuestSpec,
    StateLayout,
    TensorSpec,
    guest_tokens,
)

WKV = TensorSpec("rwkv7.wkv", (2, 3, 4, 4), "float32")
SHIFT = TensorSpec("rwkv7.shift", (2, 12), "bfloat16")
GUEST = GuestSpec(n_layers=3, n_parts=2, n_heads=2, head_dim=8, dtype="bfloat16")
HYBRID = StateLayout((WKV, SHIFT, guest_tokens()), GUEST)


def test_sizes_are_those_of_the_shapes() -> None:
    assert (WKV.nbytes, SHIFT.nbytes) == (384, 48)
    assert StateLayout((WKV, SHIFT)).payload_bytes == 432


def test_each_tensor_and_the_record_start_at_an_aligned_offset() -> None:
    layout = StateLayout((SHIFT, WKV, TensorSpec("rwkv7.ffn", (64,), "float32")))
    assert layout.offsets == (0, 256, 768)
    assert layout.record_bytes == 1024
    assert all(offset % ALIGNMENT == 0 for offset in (*layout.offsets, layout.record_bytes))


def test_tensors_do_not_overlap() -> None:
    layout = StateLayout((WKV, SHIFT))
    ends = [at + spec.nbytes for at, spec in zip(layout.offsets, layout.tensors, strict=True)]
    assert ends[0] <= layout.offsets[1]
    assert ends[1] <= layout.record_bytes


def test_the_fingerprint_of_a_layout_never_changes() -> None:
    """Bytes that were exported under this fingerprint must be accepted for ever."""
    assert StateLayout((WKV, SHIFT)).fingerprint == (
        "b88837d3a2062678a10ba4caeea0b63730202190fd183758cacc80fb2145c762"
    )


@pytest.mark.parametrize(
    "other",
    [
        (SHIFT, WKV),
        (WKV,),
        (TensorSpec("rwkv7.wkw", WKV.shape, WKV.dtype), SHIFT),
        (TensorSpec(WKV.name, (2, 3, 16, 1), WKV.dtype), SHIFT),
        (TensorSpec(WKV.name, WKV.shape, "int32"), SHIFT),
    ],
    ids=["order", "one less", "name", "shape", "dtype"],
)
def test_whatever_differs_changes_the_fingerprint(other: tuple[TensorSpec, ...]) -> None:
    assert StateLayout(other).fingerprint != StateLayout((WKV, SHIFT)).fingerprint


def test_equal_layouts_have_equal_fingerprints() -> None:
    again = TensorSpec("rwkv7.wkv", (2, 3, 4, 4), "float32")
    assert StateLayout((again,)).fingerprint == StateLayout((WKV,)).fingerprint


def test_the_family_is_the_first_part_of_the_name() -> None:
    assert WKV.family == "rwkv7"


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_dtype_of_the_table_is_accepted(dtype: str) -> None:
    assert TensorSpec("x.y", (3,), dtype).nbytes == 3 * ITEM_BYTES[dtype]


@pytest.mark.parametrize(
    ("shape", "dtype"), [((2,), "float64"), ((), "float32"), ((2, 0), "float32")]
)
def test_unknown_dtypes_and_empty_shapes_are_refused(shape: tuple[int, ...], dtype: str) -> None:
    with pytest.raises(ValueError, match=r"x\.y"):
        TensorSpec("x.y", shape, dtype)


@pytest.mark.parametrize("tensors", [(), (WKV, WKV)])
def test_names_must_be_present_and_distinct(tensors: tuple[TensorSpec, ...]) -> None:
    with pytest.raises(ValueError, match="distinct"):
        StateLayout(tensors)


def test_a_page_has_the_entries_of_its_tokens_in_all_layers() -> None:
    assert GUEST.page_shape == (3, 2, PAGE_TOKENS, 2, 8)
    assert GUEST.page_bytes == 3 * 2 * PAGE_TOKENS * 2 * 8 * 2
    assert GUEST.token_bytes * PAGE_TOKENS == GUEST.page_bytes


@pytest.mark.parametrize(
    ("n_tokens", "n_pages"), [(0, 0), (1, 1), (64, 1), (65, 2), (128, 2), (129, 3)]
)
def test_an_image_has_the_record_and_a_page_for_each_64_tokens_that_began(
    n_tokens: int, n_pages: int
) -> None:
    assert HYBRID.n_pages(n_tokens) == n_pages
    assert HYBRID.image_bytes(n_tokens) == HYBRID.record_bytes + n_pages * GUEST.page_bytes


def test_without_a_guest_an_image_is_the_record() -> None:
    layout = StateLayout((WKV, SHIFT))
    assert layout.n_pages(1000) == 0
    assert layout.image_bytes(1000) == layout.record_bytes


def test_the_fingerprint_of_a_layout_with_a_guest_never_changes() -> None:
    """Bytes that were exported under this fingerprint must be accepted for ever."""
    assert HYBRID.fingerprint == (
        "c22b64402e174fc11a42c7699b08b75f4a743e46db4377511439f0c3c3cbbae5"
    )


@pytest.mark.parametrize(
    "other",
    [
        GuestSpec(2, 2, 2, 8, "bfloat16"),
        GuestSpec(3, 1, 2, 8, "bfloat16"),
        GuestSpec(3, 2, 4, 8, "bfloat16"),
        GuestSpec(3, 2, 2, 16, "bfloat16"),
        GuestSpec(3, 2, 2, 8, "float16"),
    ],
    ids=["layers", "parts", "heads", "head", "dtype"],
)
def test_whatever_differs_in_a_guest_changes_the_fingerprint(other: GuestSpec) -> None:
    assert StateLayout(HYBRID.tensors, other).fingerprint != HYBRID.fingerprint


@pytest.mark.parametrize(
    ("tensors", "guest"),
    [
        ((WKV,), GUEST),
        ((WKV, guest_tokens()), None),
        ((WKV, TensorSpec(GUEST_TOKENS, (1,), "int64")), GUEST),
        ((WKV, TensorSpec("guest.pages", (1,), "float32"), guest_tokens()), GUEST),
    ],
    ids=["no count", "no guest", "another count", "a name of the pool"],
)
def test_a_record_counts_the_tokens_of_its_pages_iff_there_are_pages(
    tensors: tuple[TensorSpec, ...], guest: GuestSpec | None
) -> None:
    with pytest.raises(ValueError, match=r"guest\.n_tokens|guest\.pages"):
        StateLayout(tensors, guest)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((1, 2, 2, 8), "int32"), ((0, 2, 2, 8), "float32"), ((1, 3, 2, 8), "float32")],
    ids=["not a float", "no layers", "three parts"],
)
def test_a_guest_is_of_floats_and_has_one_or_two_parts(
    shape: tuple[int, int, int, int], dtype: str
) -> None:
    with pytest.raises(ValueError, match=r"guest's dtype|is none"):
        GuestSpec(*shape, dtype)


def test_a_page_is_a_multiple_of_the_alignment() -> None:
    with pytest.raises(ValueError, match="multiple of 256"):
        GuestSpec(1, 1, 1, 3, "bfloat16")
    assert GuestSpec(1, 1, 1, 3, "float32").page_bytes % ALIGNMENT == 0
