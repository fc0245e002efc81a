"""What holds of a named state, for a small random model of every architecture."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
import torch

from tests.engine.families import CONFIGS, config_of, decoder_of, prompt_of
from tests.engine.states.rig import TENANT, Rig, serving
from tests.engine.states.test_exchange import imported
from wkvm.core.registry import Ref
from wkvm.models.decoder import Decoder
from wkvm.state.mutations import Mutations

PROMPT, MORE = prompt_of(70), prompt_of(5, seed=1)


@pytest.fixture(params=list(CONFIGS))
def decoder(request: pytest.FixtureRequest) -> Decoder:
    return decoder_of(request.param)


def over(decoder: Decoder, folder: Path) -> AbstractAsyncContextManager[Rig]:
    guest_tokens = config_of(decoder).guest_tokens
    return serving(
        folder, model=decoder, mutations=Mutations.installed(), guest_tokens=guest_tokens
    )


async def file_of(rig: Rig, name: str) -> bytes:
    source = await rig.service.export(TENANT, Ref(name))
    return b"".join([bytes(chunk) for chunk in source.chunks()])


async def test_a_turn_after_a_restart_is_that_of_a_server_that_stayed(
    decoder: Decoder, tmp_path: Path
) -> None:
    async with over(decoder, tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.service.fork(TENANT, Ref("chat"), ["stays"])
        expected, _ = await rig.turn(MORE, state="stays", save_as="stays")
        whole = rig.store.load(TENANT, "stays").image
    async with over(decoder, tmp_path / "s") as rig:
        given, _ = await rig.turn(MORE, state="chat", save_as="chat")
        image = rig.store.load(TENANT, "chat").image
    assert given == expected
    assert torch.equal(image.record, whole.record)


async def test_a_state_goes_to_another_server_whole(decoder: Decoder, tmp_path: Path) -> None:
    async with over(decoder, tmp_path / "a") as rig:
        await rig.turn(PROMPT, save_as="chat")
        file, sent = await file_of(rig, "chat"), rig.store.load(TENANT, "chat").image
        expected, _ = await rig.turn(MORE, state="chat")
    async with over(decoder, tmp_path / "b") as rig:
        await imported(rig, file, "came")
        came = rig.store.load(TENANT, "came").image
        given, _ = await rig.turn(MORE, state="came")
    assert given == expected
    assert torch.equal(came.record, sent.record)


async def test_a_position_within_a_turn_is_gone_back_to(decoder: Decoder, tmp_path: Path) -> None:
    async with over(decoder, tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="short", max_tokens=3)
        await rig.turn(PROMPT, save_as="chat", max_tokens=9)
        await rig.service.rollback(TENANT, "chat", position=73)
        short, back = (rig.store.load(TENANT, name).image for name in ("short", "chat"))
    assert back.carried.n_computed == short.carried.n_computed == 72
    assert torch.equal(back.record, short.record)


async def test_what_made_a_version_makes_it_again(decoder: Decoder, tmp_path: Path) -> None:
    async with over(decoder, tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.turn(MORE, state="chat", save_as="chat")
        replayed = await rig.service.replay(TENANT, Ref("chat"))
    assert replayed.equal


async def test_decay_changes_the_matrices_and_nothing_else(
    decoder: Decoder, tmp_path: Path
) -> None:
    async with over(decoder, tmp_path / "s") as rig:
        await rig.turn(PROMPT, save_as="chat")
        await rig.service.mutate(TENANT, "decay", {"factor": 0.5}, [Ref("chat")], save_as="weaker")
        difference = await rig.service.difference(TENANT, Ref("chat"), Ref("weaker"))
        ids, _ = await rig.turn(MORE, state="weaker")
        one, two = (rig.store.load(TENANT, name).image for name in ("chat", "weaker"))
    assert not difference.equal
    assert len(ids) == 4
    for spec in decoder.layout.tensors:
        is_matrix = spec.name.endswith((".ssm", ".delta"))
        kept = one.view(spec.name)
        assert torch.equal(two.view(spec.name), kept * 0.5 if is_matrix else kept)
    pages_from = decoder.layout.record_bytes
    assert torch.equal(one.record[pages_from:], two.record[pages_from:])
