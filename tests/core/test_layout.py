import pytest

from wkvm.core.layout import ALIGNMENT, ITEM_BYTES, StateLayout, TensorSpec

WKV = TensorSpec("rwkv7.wkv", (2, 3, 4, 4), "float32")
SHIFT = TensorSpec("rwkv7.shift", (2, 12), "bfloat16")


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
