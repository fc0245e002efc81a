"""Random small models of every architecture: logits and states are those of transformers.

Whole and in pieces, among strangers, and in another slot after a copy; and a folder that is not
what its config says ends in a typed error that names what is wrong.
"""

import json
import random
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.models.oracles.architectures import ARCHITECTURES, named_cases
from tests.models.oracles.case import Architecture, Case, Refusal
from tests.models.oracles.folders import STREAM_LENGTHS, expected, stream, write_folders
from tests.models.oracles.slots import Slots
from wkvm.core.errors import CheckpointError, CorruptCheckpointError, UnsupportedModelError
from wkvm.core.layout import GUEST_PAGES, GUEST_TOKENS, StateOptions
from wkvm.models.base import Model
from wkvm.models.registry import blueprint_of, describe, load_model
from wkvm.models.sources import DecoderSource
from wkvm.models.weights import open_checkpoint

TOLERANCE = 1e-4

NONSENSE: tuple[object, ...] = (
    None,
    -1,
    0,
    10**12,
    -0.5,
    float("inf"),
    float("nan"),
    "x",
    [],
    [1],
    {},
    True,
)

CASES = named_cases()
FIRST = {a.name: f"{a.name}: {a.cases[0].name}" for a in ARCHITECTURES}
REFUSALS = [
    pytest.param(f"{a.name}: {one.case or a.cases[0].name}", one, id=f"{a.name}: {one.changes}")
    for a in ARCHITECTURES
    for one in a.refusals
]

pytestmark = pytest.mark.long


@dataclass(frozen=True, repr=False)
class Subject:
    """A case, its folder, our model of it, and what transformers says."""

    architecture: Architecture
    case: Case
    folder: Path
    model: Model
    expected: dict[str, dict[str, Tensor]]

    def ids(self, name: str) -> list[int]:
        vocab_size = self.case.config["vocab_size"]
        assert isinstance(vocab_size, int)
        return stream(name, vocab_size)

    def kinds(self, names: Iterable[str]) -> list[str]:
        """Of the names of tensors one of each kind: those that differ by numbers alone are of one.

        Names of tensors that are not loaded are left out.
        """
        of_kind = {re.sub(r"\b\d+\b", "N", name): name for name in sorted(names)}
        return [n for n in of_kind.values() if not n.startswith(self.architecture.ignored)]

    def assert_agrees(self, name: str, logits: Tensor, state: dict[str, Tensor]) -> None:
        """Hold what came of a stream to what transformers makes of it."""
        wanted = dict(self.expected[name])
        V = self.model.info.vocab_size
        assert logits.shape == (STREAM_LENGTHS[name], V)
        close(logits, wanted.pop("logits")[:, :V])
        if self.model.layout.guest is not None:
            assert state.pop(GUEST_TOKENS).item() == STREAM_LENGTHS[name]
        assert state.keys() == wanted.keys()
        for key, tensor in wanted.items():
            found = state[key]
            if key == self.architecture.tensors[1]:
                tensor = tensor[:, -found.shape[1] :]
            elif key == GUEST_PAGES:
                found = found[:, :, -tensor.shape[2] :]
            close(found, tensor)


def close(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found.float() - wanted).abs().max() < TOLERANCE


@pytest.fixture(scope="session")
def folders(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """Of all cases that tests of this session ask for."""
    asked = set[str]()
    for item in request.session.items:
        if isinstance(item, pytest.Function) and item.path == Path(__file__):
            params = item.callspec.params.values() if hasattr(item, "callspec") else ()
            asked |= {FIRST.get(param, param) for param in params if isinstance(param, str)}
    return write_folders(asked & CASES.keys(), tmp_path_factory.mktemp("oracles"))


@pytest.fixture(scope="module")
def subjects() -> dict[str, Subject]:
    return {}


def made(name: str, folders: dict[str, Path], subjects: dict[str, Subject]) -> Subject:
    """The subject of a case, loaded once."""
    if name not in subjects:
        architecture, case = CASES[name]
        folder = folders[name]
        model = load_model(folder, device="cpu", dtype="float32")
        subjects[name] = Subject(architecture, case, folder, model, expected(folder, architecture))
    return subjects[name]


@pytest.fixture(params=CASES)
def subject(
    request: pytest.FixtureRequest, folders: dict[str, Path], subjects: dict[str, Subject]
) -> Subject:
    return made(request.param, folders, subjects)


@pytest.fixture(params=FIRST)
def architecture(
    request: pytest.FixtureRequest, folders: dict[str, Path], subjects: dict[str, Subject]
) -> Subject:
    """The first case of an architecture."""
    return made(FIRST[request.param], folders, subjects)


def copied(folder: Path, to: Path) -> Path:
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    return to


def test_sequences_absorbed_whole_agree(subject: Subject) -> None:
    slots = Slots(subject.model, 2)
    for name in STREAM_LENGTHS:
        slots.open(1)
        (logits,) = slots.absorb([(1, subject.ids(name))])
        subject.assert_agrees(name, logits, slots.state(1))


def test_sequences_cut_at_random_places_agree(subject: Subject) -> None:
    slots = Slots(subject.model, 1)
    places = random.Random(subject.case.name).sample(range(1, STREAM_LENGTHS["long"]), 5)
    for name, cuts in (("long", sorted({*places, 11, 12, 13, 64})), ("short", range(1, 9))):
        slots.open(0)
        logits = slots.in_pieces(0, subject.ids(name), cuts)
        subject.assert_agrees(name, logits, slots.state(0))


def test_rows_among_strangers_and_pad_rows_agree(subject: Subject) -> None:
    slots = Slots(subject.model, 6)
    alone = {slot: slots.bytes_of(slot) for slot in (0, 3)}
    ids = {name: subject.ids(name) for name in STREAM_LENGTHS}
    for slot in (1, 2, 4, 5):
        slots.open(slot)
    stranger = ids["long"][::-1]
    outputs = {name: list[Tensor]() for name in ids}

    def step(*rows: tuple[int, list[int], str]) -> None:
        for (_, _, name), logits in zip(
            rows, slots.absorb([(slot, row) for slot, row, _ in rows]), strict=True
        ):
            if name:
                outputs[name].append(logits)

    long, short = ids["long"], ids["short"]
    step((4, long[:30], "long"), (-1, [0, 1, 2], ""), (1, short[:4], "short"), (2, stranger, ""))
    for at in range(3):
        step(
            (-1, [0], ""),
            (2, stranger[at : at + 1], ""),
            (1, short[4 + at : 5 + at], "short"),
            (4, long[30 + at : 31 + at], "long"),
        )
    step((1, short[7:], "short"), (5, ids["one"], "one"), (-1, [3], ""), (4, long[33:], "long"))
    for name, slot in (("long", 4), ("short", 1), ("one", 5)):
        subject.assert_agrees(name, torch.cat(outputs[name]), slots.state(slot))
    assert {slot: slots.bytes_of(slot) for slot in alone} == alone


@pytest.mark.parametrize("cut", [1, 64, 70])
def test_an_image_goes_on_in_another_slot_of_another_arena(subject: Subject, cut: int) -> None:
    before, after = Slots(subject.model, 2), Slots(subject.model, 3)
    ids = subject.ids("long")
    before.open(1)
    (first,) = before.absorb([(1, ids[:cut])])
    after.restore(0, before.image(1))
    (rest,) = after.absorb([(0, ids[cut:])])
    subject.assert_agrees("long", torch.cat((first, rest)), after.state(0))


def test_agreement_means_something(subject: Subject) -> None:
    """What was predicted differs between tokens and places, and states are not near zero."""
    for name in ("long", "short"):
        of = subject.expected[name]
        spread = of["logits"].std(0).mean()
        assert 100 * TOLERANCE < spread < 100
        for key in of.keys() - {"logits"}:
            assert of[key].abs().mean() > 10 * TOLERANCE, key


def test_in_bfloat16_most_tokens_have_about_the_same_logits(subject: Subject) -> None:
    """Most: a rounding may choose another expert."""
    options = StateOptions(dtype="bfloat16")
    model = load_model(subject.folder, device="cpu", dtype="bfloat16", state=options)
    slots = Slots(model, 1)
    slots.open(0)
    logits = slots.in_pieces(0, subject.ids("long"), [70, 71])
    wanted = subject.expected["long"]["logits"][:, : model.info.vocab_size]
    errors = (logits - wanted).norm(dim=1) / wanted.norm(dim=1)
    assert errors.median() < 0.15


def test_a_description_from_headers_is_that_of_the_model(subject: Subject) -> None:
    described, model = describe(subject.folder, device="cpu", dtype="float32"), subject.model
    assert described.layout == model.layout
    assert described.vocab_size == model.info.vocab_size
    assert described.n_parameters == model.info.n_parameters
    assert described.architecture == model.info.name


def test_weights_in_shards_are_the_same_model(architecture: Subject, tmp_path: Path) -> None:
    folder = copied(architecture.folder, tmp_path)
    write_shards(folder)
    model = load_model(folder, device="cpu", dtype="float32")
    for subject in (architecture, replace(architecture, model=model)):
        slots = Slots(subject.model, 1)
        slots.open(0)
        (logits,) = slots.absorb([(0, subject.ids("short"))])
        subject.assert_agrees("short", logits, slots.state(0))


def test_each_missing_weight_is_named(architecture: Subject, tmp_path: Path) -> None:
    folder = copied(architecture.folder, tmp_path)
    whole = load_file(folder / "model.safetensors")
    for name in architecture.kinds(whole):
        save_file({key: whole[key] for key in whole if key != name}, folder / "model.safetensors")
        for call in (load_model, describe):
            with pytest.raises(CorruptCheckpointError, match=re.escape(name)):
                call(folder, device="cpu")


def test_each_weight_of_another_shape_is_named(architecture: Subject, tmp_path: Path) -> None:
    folder = copied(architecture.folder, tmp_path)
    whole = load_file(folder / "model.safetensors")
    for name in architecture.kinds(whole):
        longer = torch.cat((whole[name], whole[name][:1]))
        save_file(whole | {name: longer}, folder / "model.safetensors")
        for call in (load_model, describe):
            with pytest.raises(CorruptCheckpointError, match=re.escape(name)):
                call(folder, device="cpu")


@pytest.mark.parametrize("strange", ["stranger", "{layer}strange.weight", "{layer}{last}.scale"])
def test_an_unknown_weight_is_named(architecture: Subject, strange: str, tmp_path: Path) -> None:
    folder = copied(architecture.folder, tmp_path)
    whole = load_file(folder / "model.safetensors")
    some = next(name for name in sorted(whole) if ".0." in name)
    layer, _, rest = some.partition(".0.")
    name = strange.format(layer=f"{layer}.0.", last=rest.rpartition(".")[0])
    save_file(whole | {name: torch.zeros(3)}, folder / "model.safetensors")
    for call in (load_model, describe):
        with pytest.raises(UnsupportedModelError, match=re.escape(name)):
            call(folder, device="cpu")


@pytest.mark.parametrize(("subject", "refusal"), REFUSALS, indirect=["subject"])
def test_a_config_that_would_change_the_computation_is_refused(
    subject: Subject, refusal: Refusal, tmp_path: Path
) -> None:
    folder = copied(subject.folder, tmp_path)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | dict(refusal.changes)))
    for call in (load_model, describe):
        with pytest.raises(CheckpointError, match=refusal.says):
            call(folder, device="cpu")


def test_any_value_of_any_field_is_a_model_or_a_typed_error(architecture: Subject) -> None:
    checkpoint = open_checkpoint(architecture.folder)
    model_type = architecture.architecture.model_type
    for field in checkpoint.config.keys() - {"model_type"}:
        for value in NONSENSE:
            changed = replace(checkpoint, config={**checkpoint.config, field: value})
            with suppress(CheckpointError):
                plan = blueprint_of(changed, model_type)
                DecoderSource(changed, plan).layout("float32", StateOptions())


def write_shards(folder: Path) -> None:
    """Spread the weights of a folder over three files and an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = dict[str, str]()
    for number in range(3):
        file = f"model-{number + 1:05d}-of-00003.safetensors"
        names = sorted(weights)[number::3]
        save_file({name: weights[name] for name in names}, folder / file)
        weight_map |= dict.fromkeys(names, file)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
