"""The sampler on the device against the one on a CPU: in Triton's interpreter, and on a GPU."""

import importlib
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from tests.interpreter import INTERPRETED, run_in_the_interpreter, starts_the_interpreter
from wkvm.core.grammar import Constraint
from wkvm.core.plan import RowPlan
from wkvm.core.sampling import SamplingParams
from wkvm.engine.sampler import Sampler
from wkvm.kernels.philox import uniform
from wkvm.kernels.sampling import finite_rows

# Infinities are meant; numpy, under the interpreter, is not told.
pytestmark = pytest.mark.filterwarnings("ignore:.* encountered in .*:RuntimeWarning")

DEVICES = pytest.mark.parametrize(
    "device",
    [pytest.param("cpu", id="interpreter")]
    if INTERPRETED
    else [pytest.param("cuda", id="gpu", marks=pytest.mark.gpu)],
)
NAN, INF = float("nan"), float("inf")
VOCAB = 300 if INTERPRETED else 65_536
N_ALONE = 5 if INTERPRETED else 8
"""Rows that are sampled by themselves too; five are more than ``MANY_ROWS`` of the interpreter."""

WIDEST = 1000
"""In the interpreter four times the list, and with chunks of 256 one sample in 16."""

NOT_FINITE, ENDED = 1, 2
"""As in ``wkvm.kernels.device_sampling.records``, which imports Triton."""


@pytest.fixture(autouse=True)
def small_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the interpreter a row has chunks, parts of many rows have two, lists can be too short.

    Of some of these sizes the launches are made, and not the table, so they hold for a whole test.
    """
    if INTERPRETED:
        launch = importlib.import_module("wkvm.kernels.device_sampling.launch")
        # Rows of ``VOCAB`` are wide ones here.
        sizes = {"CHUNK": 128, "GROUP": 2, "MANY_ROWS": 4, "OF_WARP": 16}
        sizes |= {"LIST": 32, "SAMPLES": 32, "NARROW": 200}
        for name, size in sizes.items():
            monkeypatch.setattr(launch, name, size)


class Rig:
    """The slot table and the CPU's sampler side by side, on rows that feed what they sample."""

    def __init__(self, device: str, vocab_size: int = VOCAB, n_slots: int = 64) -> None:
        table = importlib.import_module("wkvm.engine.slot_table")
        self.table: Any = table.SlotTable(n_slots, vocab_size, device, max_rows=n_slots)
        self.reference = Sampler(vocab_size, "cpu")
        self.device = device
        self.vocab_size = vocab_size
        self.rows = list[RowPlan]()

    def start(self, rows: Sequence[RowPlan]) -> None:
        """Absorb whole prompts."""
        self.rows = list(rows)
        self.table.start([row for row in rows if row.fresh])
        self.table.feed(rows)
        self.reference.feed(rows)

    def begin(self) -> tuple[Tensor, list[int], list[int]]:
        """The slots as the device gives them, and on the host the ids and the slots."""
        slots_in = self._slots()
        token_ids = torch.full((len(self.rows),), -9, device=self.device)
        slots = torch.full_like(slots_in, -9)
        self.table.begin(slots_in, token_ids, slots)
        return slots, token_ids.tolist(), slots.tolist()

    def end(
        self, logits: Tensor, slots: Tensor | None = None, masks: dict[int, bytes] | None = None
    ) -> tuple[list[int], list[int]]:
        """The ids and flags of all rows."""
        n_rows = len(logits)
        words = torch.full((n_rows, -(-self.vocab_size // 32)), 0x55555555, dtype=torch.int32)
        has_mask = torch.zeros(n_rows, dtype=torch.bool)
        for at, mask in (masks or {}).items():
            padded = bytearray(mask.ljust(words.shape[1] * 4, b"\0"))
            words[at] = torch.frombuffer(padded, dtype=torch.int32)
            has_mask[at] = True
        ids = torch.full((n_rows,), -9, device=self.device)
        flags = torch.full((n_rows,), 99, dtype=torch.uint8, device=self.device)
        before = logits.to(self.device, copy=True)
        given = before.clone()
        self.table.end(
            given,
            self._slots() if slots is None else slots,
            words.to(self.device),
            has_mask.to(self.device),
            ids,
            flags,
        )
        assert torch.equal(given.nan_to_num(7), before.nan_to_num(7))
        return ids.tolist(), flags.tolist()

    def expected(self, logits: Tensor, masks: dict[int, bytes] | None = None) -> list[int]:
        """What the CPU samples for the same rows."""
        return self.reference.choose(self.rows, logits, masks or {}).tolist()

    def advance(self, ids: Sequence[int]) -> None:
        """Let each row be the one that absorbs its id."""
        moved = list[RowPlan]()
        for row, token_id in zip(self.rows, ids, strict=True):
            n_output = row.n_output + 1
            moved.append(
                row._replace(
                    ids=(token_id,),
                    position=row.position + len(row.ids),
                    fresh=False,
                    n_output=n_output,
                    banned_ids=row.stops if n_output < row.params.min_tokens else (),
                )
            )
        self.rows = moved
        self.reference.feed(moved)

    def _slots(self) -> Tensor:
        return torch.tensor([row.slot for row in self.rows], dtype=torch.int32, device=self.device)


def plan(at: int, params: SamplingParams, **fields: Any) -> RowPlan:
    """The row of a whole prompt of four ids, in a slot of its own."""
    # A grammar that is asked by the tests alone; of some rows it is not ready yet.
    grammar = cast(Constraint, object()) if at % 4 == 1 else None
    row = RowPlan(
        at, at, (1, 2, 2, 4), 0, 4, True, True, 0, params, 2**63 + at, at, constraint=grammar
    )
    row = row._replace(awaits_constraint=at % 4 == 3)
    row = row._replace(**fields)
    return row._replace(banned_ids=row.stops if params.min_tokens else ())


def random_params(rng: random.Random, vocab_size: int) -> SamplingParams:
    some = rng.sample(range(vocab_size), 40)
    has_penalties = rng.random() < 0.4
    return SamplingParams(
        temperature=rng.choice([0.0, 1e-50, 1e-45, 0.3, 1.0, 1.0, 2.5, 100.0]),
        top_k=rng.choice([0, 0, 0, 1, 3, 50, vocab_size // 2, vocab_size, 2**31 - 1]),
        top_p=rng.choice([1.0, 1.0, 1e-9, 0.5, 0.9, 0.999999]),
        min_p=rng.choice([0.0, 0.0, 1e-12, 0.1, 1.0]),
        repetition_penalty=rng.choice([1.0, 1e-46, 1.3, 0.8]) if has_penalties else 1.0,
        presence_penalty=rng.choice([0.0, 0.7, -1.0]) if has_penalties else 0.0,
        frequency_penalty=rng.choice([0.0, 0.4, -0.2]) if has_penalties else 0.0,
        penalty_decay=rng.choice([1.0, 0.7]),
        logit_bias=tuple((i, rng.uniform(-5, 5)) for i in some[:9]) if rng.random() < 0.3 else (),
        allowed_ids=some if rng.random() < 0.2 else None,
        min_tokens=rng.choice([0, 0, 2]),
    )


def random_mask(rng: random.Random, vocab_size: int) -> bytes:
    return bytes(rng.choice([0, 255, rng.randrange(256)]) | 1 for _ in range(-(-vocab_size // 8)))


def random_logits(n_rows: int, vocab_size: int, seed: int) -> Tensor:
    """Half of the rows of multiples of a quarter, with many ties and zeros of both signs."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(n_rows, vocab_size, generator=generator) * 3
    logits[::2] = (logits[::2] * 4).round() / 4
    return logits


@DEVICES
@pytest.mark.parametrize("seed", range(1 if INTERPRETED else 4))
def test_ids_equal_those_of_the_cpu_under_all_parameters_over_several_steps(
    seed: int, device: str
) -> None:
    rng = random.Random(seed)
    rig = Rig(device)
    size, n_rows = rig.vocab_size, 8 if INTERPRETED else 16
    stops = [(), (7,), tuple(rng.sample(range(size), 8)), tuple(rng.sample(range(size), 60))]
    rig.start([plan(at, random_params(rng, size), stops=rng.choice(stops)) for at in range(n_rows)])
    slots = None
    for step in range(3):
        logits = random_logits(n_rows, size, seed * 100 + step)
        masks = {at: random_mask(rng, size) for at in range(1, n_rows, 2) if rng.random() < 0.4}
        ids, flags = rig.end(logits, slots, masks)
        expected = rig.expected(logits, masks)
        running = [True] * n_rows if slots is None else [slot >= 0 for slot in slots.tolist()]
        for row, runs, one, other, flag in zip(
            rig.rows, running, ids, expected, flags, strict=True
        ):
            assert one == other if runs else one == 0, row.params
            assert flag == (ENDED if runs and one in row.stops else 0)
        rig.advance(expected)
        slots, fed, _ = rig.begin()
        assert fed == [
            one if runs and not flag else 0
            for one, runs, flag in zip(ids, running, flags, strict=True)
        ]


@DEVICES
def test_a_row_depends_on_no_other_and_pad_rows_are_passed_over(device: str) -> None:
    rng = random.Random(3)
    params = [random_params(rng, VOCAB) for _ in range(N_ALONE)]
    rows = [plan(at, one) for at, one in enumerate(params)]
    together, alone = Rig(device), Rig(device)
    together.start(rows)
    alone.start(rows)
    logits = random_logits(N_ALONE + 1, VOCAB, 5)
    slots = torch.tensor([0, 1, 2, -1, *range(3, N_ALONE)], dtype=torch.int32, device=device)
    records = together.table.records.clone()
    ids, _ = together.end(logits, slots)
    assert ids[3] == 0
    assert torch.equal(together.table.records[N_ALONE:], records[N_ALONE:])
    for at, slot in enumerate(slots.tolist()):
        if slot >= 0:
            ids_alone, _ = alone.end(logits[at : at + 1], slots[at : at + 1])
            assert ids_alone == ids[at : at + 1]
    fields = [one.table.records[:N_ALONE, :5].cpu() for one in (together, alone)]
    assert torch.equal(*fields)


@DEVICES
@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_a_row_that_is_not_finite_is_flagged_done_and_disturbs_no_other(
    value: float, device: str
) -> None:
    rig = Rig(device)
    base = SamplingParams(max_tokens=5)
    mixes = [base, replace(base, temperature=0), replace(base, top_p=0.9), replace(base, top_k=3)]
    rig.start([plan(at, one) for at, one in enumerate([base, *mixes, base])])
    logits = random_logits(6, VOCAB, 1)
    expected = rig.expected(logits)
    logits[1:5, VOCAB - 3] = value
    assert finite_rows(logits).tolist() == [True, False, False, False, False, True]
    ids, flags = rig.end(logits)
    assert flags == [0, NOT_FINITE, NOT_FINITE, NOT_FINITE, NOT_FINITE, 0]
    assert (ids[0], ids[5]) == (expected[0], expected[5])
    assert all(0 <= one < VOCAB for one in ids)
    assert rig.begin()[2] == [0, -1, -1, -1, -1, 5]


@DEVICES
def test_what_the_sample_of_a_row_hides_changes_no_id(device: str) -> None:
    rig = Rig(device)
    base = SamplingParams()
    mixes = [
        replace(base, top_p=0.6),
        replace(base, top_k=VOCAB // 2 + 3),
        replace(base, top_k=VOCAB // 2 + 3, top_p=0.7),
        replace(base, top_p=0.6, min_p=0.2, temperature=3.0),
    ][:: 2 if INTERPRETED else 1]
    shapes = 4
    rig.start([plan(at, one) for at, one in enumerate(mixes * shapes)])
    logits = random_logits(len(mixes) * shapes, VOCAB, 9)
    of_shape = logits.view(shapes, len(mixes), VOCAB)
    of_shape[0] = 0.25  # equals, more than fit into a list
    of_shape[1, :, ::8] -= 20  # every eighth is seen, and looks like a tail
    of_shape[2, :, ::8] += 5  # or like a head
    of_shape[3] = -3
    of_shape[3, :, 1:200] = 4  # the head is in one place
    assert rig.end(logits)[0] == rig.expected(logits)


@DEVICES
@pytest.mark.parametrize(
    "vocab_size",
    [2, 63, 64, 301, WIDEST] if INTERPRETED else [300, 50_277, 65_529, 151_936, 262_144],
)
def test_a_vocabulary_may_have_any_size(
    vocab_size: int, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if INTERPRETED and vocab_size == WIDEST:
        launch = importlib.import_module("wkvm.kernels.device_sampling.launch")
        monkeypatch.setattr(launch, "CHUNK", 256)
    rig = Rig(device, vocab_size)
    base = SamplingParams()
    mixes = [
        base,
        replace(base, temperature=0),
        replace(base, top_p=0.8),
        replace(base, top_k=2),
        replace(base, min_p=0.3),
        replace(base, top_p=0.8, presence_penalty=0.5, logit_bias=((1, 2.0),)),
    ]
    rig.start([plan(at, one, ids=(1, 0, 1, 1)) for at, one in enumerate(mixes)])
    for seed in range(1 if INTERPRETED else 2):
        logits = random_logits(len(mixes), vocab_size, seed)
        ids, _ = rig.end(logits)
        assert ids == rig.expected(logits)
        rig.advance(ids)
        rig.begin()


@DEVICES
def test_random_numbers_have_the_same_bits(device: str) -> None:
    kernel = importlib.import_module("tests.kernels.uniform_kernel").uniform_kernel
    records = importlib.import_module("wkvm.kernels.device_sampling.records")
    edges = [0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]
    keys = [(seed, branch, at) for seed in edges for branch in edges for at in edges]
    table = torch.zeros((len(keys), records.WORDS), dtype=torch.int64)
    fields = [records.SEED, records.BRANCH, records.POSITION]
    table[:, fields] = torch.tensor(
        [[word - 2**64 if word >= 2**63 else word for word in key] for key in keys]
    )
    numbers = torch.zeros(len(keys), dtype=torch.float64, device=device)
    kernel[len(keys),](table.to(device), numbers)
    assert numbers.tolist() == [uniform(*key) for key in keys]


@DEVICES
def test_of_one_id_that_is_left_it_is_the_one(device: str) -> None:
    rig = Rig(device)
    base = SamplingParams(top_p=0.9, max_tokens=5)
    others = tuple(i for i in range(VOCAB) if i != 211)
    rig.start(
        [
            plan(0, replace(base, allowed_ids=(211,))),
            plan(1, replace(base, min_tokens=1), stops=others[:290] if VOCAB < 400 else (5,)),
            plan(2, replace(base, logit_bias=((211, 100.0),))),
            plan(3, base),
        ]
    )
    logits = torch.zeros(4, VOCAB)
    logits[1] = -30
    logits[1, 211] = 0
    logits[1, 5] = 9
    mask = bytearray(-(-VOCAB // 8))
    mask[211 // 8] |= 1 << 211 % 8
    ids, _ = rig.end(logits, masks={3: bytes(mask)})
    assert ids == [211] * 4


@DEVICES
def test_a_row_of_which_nothing_is_left_gets_an_id_in_range(device: str) -> None:
    rig = Rig(device)
    base = SamplingParams(allowed_ids=(3,))
    rig.start([plan(1, base), plan(3, replace(base, temperature=0)), plan(2, base)])
    ids, flags = rig.end(torch.zeros(3, VOCAB), masks={0: b"", 1: b""})
    assert all(0 <= one < VOCAB for one in ids)
    assert ids[2] == 3
    assert flags == [0, 0, 0]


@DEVICES
def test_a_slot_is_done_with_a_stop_id_or_the_last_of_max_tokens(device: str) -> None:
    rig = Rig(device)
    greedy = SamplingParams(temperature=0)
    rows = [
        plan(0, replace(greedy, max_tokens=2)),
        plan(1, replace(greedy, max_tokens=9), stops=(6,)),
        plan(2, replace(greedy, max_tokens=9, min_tokens=2), stops=(6,)),
        plan(3, replace(greedy, max_tokens=9), stops=tuple(range(10, 40))),
    ]
    rig.start(rows)
    logits = torch.zeros(4, VOCAB)
    seen = list[tuple[list[int], list[int]]]()
    slots = None
    # The likeliest id of each row in each of four steps.
    for best in ([5, 5, 6, 5], [5, 5, 6, 39], [6, 6, 6, 5], [5, 5, 5, 5]):
        logits.zero_()
        logits[:, 8] = 1
        logits[torch.arange(4), best] = 2
        seen.append(rig.end(logits, slots))
        slots, _, _ = rig.begin()
    assert seen == [
        ([5, 5, 8, 5], [0, 0, 0, 0]),
        ([5, 5, 8, 39], [ENDED, 0, 0, ENDED]),
        ([0, 6, 6, 0], [0, ENDED, ENDED, 0]),
        ([0, 0, 0, 0], [0, 0, 0, 0]),
    ]


@DEVICES
def test_a_prompt_in_chunks_is_remembered_like_a_whole_one(device: str) -> None:
    params = SamplingParams(temperature=0, repetition_penalty=3.0, frequency_penalty=1.0)
    rig = Rig(device)
    first = plan(0, params, ids=(1, 2, 2), n_prompt=5)
    last = first._replace(ids=(4, 1), position=3, fresh=False)
    for row in (first, last):
        rig.start([row])
    logits = torch.ones(1, VOCAB)
    logits[0, [1, 2, 4]] = 2
    logits[0, 77] = 1.5
    assert rig.end(logits)[0] == rig.expected(logits) == [77]
    rig.advance([77])
    rig.begin()
    assert rig.end(logits)[0] == rig.expected(logits) == [0]


@DEVICES
def test_ids_of_output_that_the_host_feeds_count_like_those_of_the_device(device: str) -> None:
    params = SamplingParams(temperature=0, frequency_penalty=1.0, penalty_decay=0.5)
    rig = Rig(device)
    # As where a state is rebuilt: three ids of a row of seven are output.
    rig.start([plan(0, params, ids=(1, 2, 2, 4, 9, 8, 9))])
    logits = torch.zeros(1, VOCAB)
    logits[0, [7, 8, 9]] = torch.tensor([0.6, 1.0, 2.0])
    # Counts are 0.25 + 1 of 9 and 0.5 of 8.
    assert rig.end(logits)[0] == rig.expected(logits) == [9]
    logits[0, 9] = 1.8
    assert rig.end(logits)[0] == rig.expected(logits) == [7]


@DEVICES
def test_what_is_kept_for_slots_is_released(device: str) -> None:
    rig = Rig(device)
    rows = [plan(at, SamplingParams(frequency_penalty=1.0, allowed_ids=(5,))) for at in range(3)]
    rig.start(rows)
    assert rig.table.n_remembered == 3
    rig.table.start([rows[1]._replace(params=SamplingParams())])
    rig.table.forget([2, 3])
    assert rig.table.n_remembered == 1


@DEVICES
def test_no_record_names_what_was_released(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who ran in the slot all the same would write to what is somebody else's by then."""
    fields = importlib.import_module("wkvm.kernels.device_sampling.records")
    rig = Rig(device)
    params = SamplingParams(frequency_penalty=1.0, allowed_ids=(5,))
    rows = [plan(at, params) for at in range(3)]
    rig.start(rows)
    addresses = [fields.BIAS, fields.COUNTS, fields.RULED]
    assert rig.table.records[:3, addresses].ne(0).all()
    rig.table.forget([1])

    def no_memory(*_: object, **__: object) -> Tensor:
        raise torch.OutOfMemoryError

    with monkeypatch.context() as patch:
        patch.setattr(torch, "zeros", no_memory)
        with pytest.raises(torch.OutOfMemoryError):
            rig.table.start([rows[2]])
    records = rig.table.records.cpu()
    assert records[0, addresses].ne(0).all()
    assert records[1:3, addresses].eq(0).all()
    assert records[1:3, fields.IS_DONE].eq(1).all()
    rig.rows = rows
    _, token_ids, slots = rig.begin()
    assert (token_ids[1:], slots) == ([0, 0], [0, -1, -1])


@starts_the_interpreter
def test_the_kernels_pass_these_tests_in_the_interpreter() -> None:
    run_in_the_interpreter(__file__, "interpreter and not kernels_pass")
