"""Initial states of the RWKV community: matrices that were trained, for a model to start from.

Such a file has one tensor a layer, ``blocks.N.att.time_state``, and no token shifts: a state from
it has an empty token log. It is a ``.pth`` or a safetensors file.

How a head's matrix lies in it cannot be seen, since it is square. BlinkDL's recurrence and the
runners of RWKV-7 have ``[value, key]``, and so have the files that RWKV-PEFT writes: its training
transposes them for the kernels of flash-linear-attention, which have ``[key, value]``. Trainers
that hand the tensor to these kernels as it is write ``[key, value]``.
"""

from enum import Enum
from math import prod

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_safetensors
from safetensors.torch import save as save_safetensors
from torch import Tensor

from wkvm.core.errors import BadStateFileError, StateNotFiniteError
from wkvm.core.kinds import TensorKind, of_kind
from wkvm.core.layout import StateLayout, TensorSpec
from wkvm.core.registry import Carried, Identity
from wkvm.state.arithmetic import not_finite
from wkvm.state.exchange import Export, Imported
from wkvm.state.folding import Fold, folded
from wkvm.state.format import MAX_HEADER_BYTES
from wkvm.state.history import History
from wkvm.state.image import StateImage, views_of
from wkvm.state.pth import read_pth

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
"""That a file may have; it is converted to the dtype of the states."""

MATRICES = "rwkv7.wkv"
"""The tensor that such a file holds. Other families have no such files."""

ZIP = b"PK\x03\x04"


class Orientation(Enum):
    """How a head's matrix lies in the file."""

    BLINKDL = "blinkdl"
    """``[value, key]``. What is meant where nothing is said."""
    FLA = "fla"
    """``[key, value]``."""


def max_file_bytes(layout: StateLayout) -> int:
    """How long a file of initial states for this layout may be."""
    return 4 * prod(_matrices(layout).shape) + 2 * MAX_HEADER_BYTES


def import_time_state(
    file: bytes | memoryview,
    identity: Identity,
    layout: StateLayout,
    orientation: Orientation = Orientation.BLINKDL,
) -> StateImage:
    """The state that a file of initial states stands for. The file may be anybody's.

    Args:
        file: all of it, at most ``max_file_bytes``.
        identity: of the model that it is for. The file does not say which one that is.
        layout: the model's.
        orientation: how matrices lie in the file.

    Raises:
        BadStateFileError: no such file, or its tensors are not those of the layout's layers, heads
            and sizes.
        StateNotFiniteError: it holds NaN or infinity, or numbers beyond the states' dtype.
    """
    spec = _matrices(layout)
    if len(file) > max_file_bytes(layout):
        raise BadStateFileError(f"it has more than {max_file_bytes(layout):,} bytes")
    tensors = read_pth(file) if file[:4] == ZIP else _read_safetensors(bytes(file))
    n_layers, shape = spec.shape[0], spec.shape[1:]
    names = [_name(layer) for layer in range(n_layers)]
    if tensors.keys() != set(names):
        odd = sorted(tensors.keys() ^ set(names))
        raise BadStateFileError(
            f"it is to have {names[0]} to {names[-1]} and nothing else; {odd[0]:.64}"
            f" is {'missing' if odd[0] in names else 'not one of them'}"
        )
    record = torch.zeros(layout.record_bytes, dtype=torch.uint8)
    view = views_of(layout, record)[spec.name]
    for layer, name in enumerate(names):
        view[layer] = _turned(name, tensors[name], shape, orientation)
    if (bad := not_finite({spec.name: view})) is not None:
        raise StateNotFiniteError(bad)
    return StateImage(
        identity=identity,
        layout=layout,
        carried=Carried(n_computed=0),
        token_ids=b"",
        record=record,
    )


def export_time_state(
    image: StateImage,
    orientation: Orientation = Orientation.BLINKDL,
    *,
    fold: Fold | None = None,
) -> Export:
    """The matrices of a state as a file of initial states: safetensors, in the states' dtype.

    Token log and token shifts are left out: what starts from the file remembers, and has read
    nothing. The digest of the export is empty.

    Args:
        image: the state.
        orientation: how matrices are to lie in the file.
        fold: takes the tokens in a ring into the matrices.

    Raises:
        BadStateFileError: the model is not RWKV-7.
        InvalidParameterError: a ring is not empty, and there is no ``fold``.
        StateNotFiniteError: it holds NaN or infinity.
    """
    spec = _matrices(image.layout)
    view = folded(image, fold).view(spec.name)
    if (bad := not_finite({spec.name: view})) is not None:
        raise StateNotFiniteError(bad)
    if orientation is Orientation.BLINKDL:
        view = view.transpose(2, 3)
    file = save_safetensors(
        {_name(layer): matrix.contiguous() for layer, matrix in enumerate(view)}
    )
    return Export(n_bytes=len(file), digest="", buffers=(memoryview(file),))


class TimeStateReceiver:
    """A file of initial states on its way in. Holds it, and in the end a few times as much."""

    def __init__(
        self, n_bytes: int, identity: Identity, layout: StateLayout, orientation: Orientation
    ) -> None:
        """Prepare for a file of exactly ``n_bytes``, as the peer announced it.

        Raises:
            BadStateFileError: no file for this layout is that long.
        """
        if not 0 < n_bytes <= max_file_bytes(layout):
            raise BadStateFileError(
                f"{n_bytes:,} bytes are announced, the limit is {max_file_bytes(layout):,}"
            )
        self._n_bytes = n_bytes
        self._identity = identity
        self._layout = layout
        self._orientation = orientation
        self._file = bytearray()

    @property
    def n_missing(self) -> int:
        """Bytes that are still to come."""
        return self._n_bytes - len(self._file)

    def feed(self, chunk: bytes | bytearray | memoryview) -> None:
        """Take the next bytes of the file, in pieces of any length. They are copied.

        Raises:
            BadStateFileError: there are more than were announced.
        """
        if memoryview(chunk).nbytes > self.n_missing:
            raise BadStateFileError("more bytes came than were announced")
        self._file += chunk

    def finish(self) -> Imported:
        """The state, once all bytes have come.

        Raises:
            BadStateFileError: bytes are missing; or as ``import_time_state``.
            StateNotFiniteError: as ``import_time_state``.
        """
        if self.n_missing:
            raise BadStateFileError(f"{self.n_missing:,} bytes are missing")
        image = import_time_state(
            bytes(self._file), self._identity, self._layout, self._orientation
        )
        return Imported(image=image, history=History())


def _name(layer: int) -> str:
    return f"blocks.{layer}.att.time_state"


def _turned(name: str, tensor: Tensor, shape: tuple[int, ...], orientation: Orientation) -> Tensor:
    heads, keys, values = shape
    expected = shape if orientation is Orientation.FLA else (heads, values, keys)
    if tuple(tensor.shape) != expected:
        raise BadStateFileError(f"{name} is {list(tensor.shape)}, not {list(expected)}")
    if tensor.dtype not in DTYPES:
        raise BadStateFileError(f"{name} is of dtype {tensor.dtype}")
    return tensor if orientation is Orientation.FLA else tensor.transpose(1, 2)


def _matrices(layout: StateLayout) -> TensorSpec:
    specs = of_kind(layout, TensorKind.MATRIX)
    if [spec.name for spec in specs] != [MATRICES]:
        families = ", ".join(dict.fromkeys(spec.family for spec in layout.tensors))
        raise BadStateFileError(
            f"initial states are files of RWKV-7's matrices, and a state of this model is "
            f"{families}: it goes out and comes in as format 'state'"
        )
    return specs[0]


def _read_safetensors(file: bytes) -> dict[str, Tensor]:
    n_header = int.from_bytes(file[:8], "little")
    if not 0 < n_header <= min(MAX_HEADER_BYTES, len(file) - 8):
        raise BadStateFileError("neither a .pth nor a safetensors file")
    try:
        return load_safetensors(file)
    except (SafetensorError, ValueError, KeyError, RecursionError) as error:
        raise BadStateFileError(f"a damaged safetensors file: {error!s:.128}") from error
