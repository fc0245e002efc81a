"""Which kernels make a decode step of RWKV-7 on a GPU, and how they are cut up, by its rows."""

from dataclasses import dataclass, replace
from typing import TypeAlias, TypeVar

from wkvm.kernels.rwkv7_decode import Blocks, Mapped


@dataclass(frozen=True, slots=True)
class Gemv:
    """A product through ``kernels.gemv``: bytes of weights and warps of one program."""

    n_bytes: int = 32 * 1024
    n_warps: int = 4

    def n(self, length: int, item_bytes: int) -> int:
        """Outputs of a program: the largest power of two that fits, at least 1."""
        return 1 << max(0, (self.n_bytes // (length * item_bytes)).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Library:
    """A product through cuBLAS; with splits, parts of the sums as one batched product.

    Nothing can be applied to it.
    """

    n_splits: int = 1


Cut: TypeAlias = Gemv | Blocks | Mapped | Library

_AnyCut = TypeVar("_AnyCut", bound=Cut | None)


def parts_of(cut: Cut) -> int:
    """How many parts of its sums a product leaves to be added up."""
    return 1 if isinstance(cut, Gemv) else cut.n_splits


@dataclass(frozen=True, slots=True)
class Plan:
    """Which kernels make a step, and how they are cut up.

    Attributes:
        first: r, k, v; unless it is the library, with the first stages of the low-rank maps.
        hidden: these stages, if ``first`` is the library: beside it, on a stream of their own.
        second: the second stages. None: where their outputs are used.
        output, key, value, head: the other products.
        wkv_warps, mix_warps: of a program of ``kernels.wkv`` and of ``kernels.mix``.
        fuses_norms: norms, token shifts and mixes are done by each program of the product that
            they precede, which must be ``Gemv``: two launches fewer a layer.
        pdl: launches may begin while the one before runs.
        looks_ahead: ``Gemv`` and the recurrence bring weights of the next launches into the L2
            cache.
    """

    first: Gemv | Blocks | Library
    hidden: Blocks | None
    second: Blocks | None
    output: Cut
    key: Cut
    value: Cut
    head: Cut
    wkv_warps: int
    mix_warps: int = 8
    fuses_norms: bool = False
    pdl: bool = True
    looks_ahead: bool = False


WIDEST_FUSED = 2048
"""Channels of which a program can norm and mix a row beside its weights; for more it runs out of
registers, and with them of weights on their way."""


def plan_of(
    n_rows: int,
    item_bytes: int = 2,
    *,
    width: int = 2048,
    is_quantised: bool = False,
    is_deterministic: bool = False,
) -> Plan:
    """What measured best on an H200 for about ``n_rows`` rows; see ``bench/NOTES.md``.

    Measured with a model's dtype of 2 bytes. With a wider one the blocks are cut so that they take
    as much shared memory.

    Args:
        n_rows: of the step.
        item_bytes: of the model's dtype.
        width: channels of the model.
        is_quantised: the large matrices are held in one byte a value.
        is_deterministic: no bit of a row may depend on ``n_rows``.
    """
    if is_deterministic:
        plan = _deterministic(n_rows)
    elif is_quantised:
        plan = _quantised(_measured_plan(n_rows, width), n_rows)
    else:
        plan = _measured_plan(n_rows, width)
    if item_bytes == 2:
        return plan

    def narrow(cut: _AnyCut) -> _AnyCut:
        return replace(cut, k=cut.k * 2 // item_bytes) if isinstance(cut, Blocks | Mapped) else cut

    return replace(
        plan,
        first=narrow(plan.first),
        hidden=narrow(plan.hidden),
        second=narrow(plan.second),
        output=narrow(plan.output),
        key=narrow(plan.key),
        value=narrow(plan.value),
        head=narrow(plan.head),
    )


def _measured_plan(n_rows: int, width: int) -> Plan:
    if n_rows <= 4 and width > WIDEST_FUSED:
        most = Gemv(64 * 1024, 8)
        return Plan(most, None, None, most, most, most, most, wkv_warps=8)
    if n_rows <= 4:
        return Plan(
            first=Gemv(16 * 1024, 2),
            hidden=None,
            second=None,
            output=Gemv(16 * 1024, 2),
            key=Gemv(64 * 1024, 8),
            value=Gemv(32 * 1024, 4),
            head=Gemv(32 * 1024, 8),
            wkv_warps=8,
            fuses_norms=True,
            looks_ahead=True,
        )
    if 16 < n_rows <= 32:
        wide = Blocks(64, 32, 128, 1, 4, 6, n_fetched=512)
        return Plan(
            first=wide,
            hidden=None,
            second=Blocks(32, 32, 128, 1, 4, 2, n_fetched=128),
            output=replace(wide, n_splits=4),
            key=wide,
            value=replace(wide, n_splits=4, n_fetched=1024),
            head=Blocks(64, 32, 128, 1, 4, 4),
            wkv_warps=1,
            mix_warps=16,
        )
    if n_rows <= 64:
        b = 16 if n_rows <= 16 else 64
        wide = Blocks(64, b, 64, 1, 4, 8) if b == 64 else Blocks(64, b, 128, 1, 4, 6)
        deep = Blocks(64, b, 128, 4, 4, 4 if b == 64 else 6)
        return Plan(
            first=wide,
            hidden=None,
            second=Blocks(64, b, 256, 1, 4, 2),
            output=deep,
            key=wide,
            value=deep,
            head=Blocks(128, 64, 64, 1, 4, 6) if b == 64 else Blocks(64, b, 128, 1, 4, 4),
            wkv_warps=4 if b == 16 else 1,
        )
    output: Cut = Library()
    second = Blocks(128, 128, 64, 1, 8, 3)
    key: Cut
    # The library would round the key's product before the square, which doubles the error.
    if n_rows <= 128:
        key = Blocks(64, 128, 64, 1, 4, 5)
    elif n_rows <= 512 and width > WIDEST_FUSED:
        key = Blocks(128, 256, 64, 1, 8, 3)
    elif n_rows <= 512:
        key = Blocks(64, 256, 64, 1, 8, 4)
        if n_rows <= 256:
            output, second = Blocks(64, 128, 64, 2, 4, 6), Blocks(64, 128, 64, 1, 4, 3)
    else:
        key = Mapped(128, 256, 64)
    return Plan(
        first=Library(),
        hidden=Blocks(64, 64, 128, 1, 4, 4) if n_rows <= 512 else Blocks(128, 128, 64, 1, 8, 4),
        second=second,
        output=output,
        key=key,
        value=Library(4 if n_rows <= 256 else 1),
        head=Library(),
        wkv_warps=1,
        mix_warps=8 if n_rows <= 512 else 4,
        # Between these it was slower when it was last measured, at 512 rows.
        pdl=n_rows <= 256 or n_rows > 512,
    )


def _quantised(plan: Plan, n_rows: int) -> Plan:
    """The plan for weights of one byte, which are widened within the products.

    No library takes them; programs of few rows hold half the bytes, which are as many weights.
    """
    if isinstance(plan.first, Gemv):
        if plan.fuses_norms:
            few = Gemv(32 * 1024, 4)
            plan = replace(plan, first=Gemv(16 * 1024, 4), key=Gemv(64 * 1024, 16), head=few)

        def half(cut: _AnyCut) -> _AnyCut:
            return replace(cut, n_bytes=cut.n_bytes // 2) if isinstance(cut, Gemv) else cut

        if n_rows == 1:
            # Twice the weights in a program, since they take the same registers until used.
            return replace(plan, value=Gemv(16 * 1024, 8)) if plan.fuses_norms else plan
        return replace(
            plan,
            first=half(plan.first),
            output=half(plan.output),
            key=half(plan.key),
            value=half(plan.value),
        )
    if n_rows <= 64:
        # Two warps are too few for the matrix instructions of a warp group, which would wait for
        # each other where weights come from registers, in which they have just been widened.
        b = 16 if n_rows <= 16 else 32 if n_rows <= 32 else 64
        wide = Blocks(64, b, 128, 1, 2, 6) if b < 64 else Blocks(64, 64, 128, 1, 4, 4)
        deep = replace(wide, n_splits=4)
        return replace(plan, first=wide, output=deep, key=wide, value=deep)
    wide = Blocks(64, 128, 64, 1, 4, 5) if n_rows <= 128 else Blocks(64, 256, 64, 1, 8, 4)
    deep = replace(wide, n_splits=4)
    return replace(
        plan, first=wide, hidden=None, output=deep, key=wide, value=deep, pdl=n_rows <= 256
    )


N_FIXED_SPLITS = 4
"""Parts of the long sums of a deterministic step, whatever its rows."""

FIXED_LENGTH = 128
"""Terms of a block where a sum has parts: where a part ends depends on it."""


def _deterministic(n_rows: int) -> Plan:
    """Plans of which each gives a row the same bits.

    A block of a product adds up its terms in order, 16 at a time, whatever its size: so sizes may
    differ from plan to plan. What may not: how many parts a sum has and where they end, how many
    warps share the sums of the recurrence, and which kernels there are. No library is asked: it
    takes another kernel for another number of rows.
    """
    b = 16 if n_rows <= 16 else 32 if n_rows <= 32 else 64 if n_rows <= 64 else 128
    n_stages = {16: 6, 32: 6, 64: 4, 128: 3}[b]
    wide = head = Blocks(64, b, 128, 1, 4, 4)
    second = Blocks(64, b, 128, 1, 4, 2)
    deep = Blocks(64, b, FIXED_LENGTH, N_FIXED_SPLITS, 4, n_stages)
    if n_rows <= 32:
        wide = replace(wide, n_stages=6)
    elif n_rows <= 64:
        wide, head = Blocks(64, 64, 64, 1, 4, 8), Blocks(128, 64, 64, 1, 4, 6)
    elif n_rows <= 128:
        wide, head = Blocks(64, 128, 64, 1, 4, 5), Blocks(128, 128, 64, 1, 8, 4)
    else:
        wide = head = Blocks(128, 128, 64, 1, 8, 4)
        deep = Blocks(128, 128, FIXED_LENGTH, N_FIXED_SPLITS, 8, 3)
        second = Blocks(128, 128, 64, 1, 8, 3)
    return Plan(wide, None, second, deep, wide, deep, head, wkv_warps=1, pdl=n_rows <= 256)
