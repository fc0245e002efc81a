"""The end of a turn as a version: its image, and how it came to be. Runs in threads."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace

from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Grammar
from wkvm.core.registry import Carried, Durability, Parent, Provenance, VersionRecord
from wkvm.core.start import Saved
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.turns import Origin, Turn
from wkvm.state.image import StateImage, encode_image, pack_ids


def image_of(backing: Backing, origin: Origin | None, saved: Saved) -> StateImage:
    """The image of what was saved."""
    log = b"" if origin is None else origin.image.token_ids
    return StateImage(
        identity=backing.identity,
        layout=backing.layout,
        carried=Carried(n_computed=saved.n_computed, pending=saved.pending, sampler=saved.memory),
        token_ids=log + pack_ids(saved.absorbed),
        record=saved.record,
    )


def parents_of(origin: Origin | None) -> tuple[Parent, ...]:
    """What a turn continues, for its provenance. Hashes an origin that has no name."""
    if origin is None:
        return ()
    if origin.record is None:
        return (Parent(ref="", content_id=encode_image(origin.image).content_id),)
    record = origin.record
    return (Parent(ref=str(record.ref), content_id=record.content_id),)


def provenance_of(backing: Backing, turn: Turn, saved: Saved) -> Provenance:
    """How the end of a turn came to be: enough to do it again with the ids of its log.

    ``n_output`` counts the ids of it that were produced, one that has ended the turn too.
    """
    n_fed = len(turn.pending) + len(turn.spec.prompt)
    n_output = max(len(saved.absorbed) + len(saved.pending) - n_fed, 0)
    parameters: dict[str, object] = {
        "n_output": n_output,
        "n_prompt": len(turn.spec.prompt),
    }
    if turn.use.checkpoint_every is not None:
        parameters["checkpoint_every"] = turn.use.checkpoint_every
    if turn.spec.grammar is not None and n_output:
        n_tokens = saved.n_computed + len(saved.pending)
        parameters |= grammar_parameters(turn, n_tokens - n_output)
    return Provenance(
        operation=turn.use.operation,
        parameters=parameters,
        parents=parents_of(turn.origin),
        n_before=turn.n_start,
        n_after=saved.n_computed,
        seed=saved.memory.seed if n_output and saved.memory is not None else None,
        engine=backing.engine,
    )


def grammar_parameters(turn: Turn, first_output: int) -> dict[str, object]:
    """Which grammar a turn followed, and from which token on.

    Args:
        first_output: how many tokens come before the first that the turn produced.
    """
    grammar, n_told = turn.spec.grammar, 0
    memory = None if turn.origin is None else turn.origin.image.carried.sampler
    if memory is not None and not turn.spec.prompt and memory.grammar == grammar:
        n_told = len(memory.grammar_ids)
    if grammar is None:
        return {}
    return {"grammar": [grammar.kind, grammar.source], "grammar_from": first_output - n_told}


def grammar_at(
    record: VersionRecord, ids: Sequence[int], position: int
) -> tuple[Grammar, tuple[int, ...]] | None:
    """The grammar that a turn followed, and what it had been told before a position in its output.

    Args:
        record: of the turn, perhaps from elsewhere.
        ids: of its sequence, at least up to ``position``.

    Returns:
        None, if there is no grammar that goes on there.
    """
    parameters = record.provenance.parameters
    if position >= record.n_computed + record.n_pending:
        return None  # where it ended, which its own memory knows
    match parameters.get("grammar"), parameters.get("grammar_from"):
        case [str(kind), str(source)], int(first) if 0 <= first < position:
            with contextlib.suppress(InvalidParameterError):
                return Grammar(kind, source), tuple(ids[first:position])
        case _:
            pass
    return None


def commit_turn(
    backing: Backing, tenant: str, name: str, turn: Turn, saved: Saved
) -> tuple[VersionRecord, StateImage]:
    """Make the end of a turn a version.

    Raises:
        WkvmError: as ``Store.commit``; nothing was changed.
    """
    use, origin = turn.use, turn.origin
    image = image_of(backing, origin, saved)
    record = backing.store.commit(
        tenant,
        name,
        image,
        provenance=provenance_of(backing, turn, saved),
        expected_version=expected_of(turn),
        durability=backing.durability(use.durability),
        tags=use.tags or None,  # without any, those that are there stay
        expires_at=use.expires_at,
        checkpoints=checkpoints_of(backing, turn.checkpoints, saved.n_computed),
        idempotency_key=use.idempotency_key,
    )
    return record, image


def commit_on_the_way(
    backing: Backing,
    name: str,
    turn: Turn,
    saved: Saved,
    *,
    expected_version: int | None,
    durability: Durability,
    idempotency_key: str | None,
    checkpoints: Sequence[tuple[Origin | None, Saved]] = (),
) -> VersionRecord:
    """Make a version of the state of a turn that goes on.

    Args:
        turn: as it was when ``saved`` was copied.

    Raises:
        WkvmError: as ``Store.commit``; nothing was changed.
    """
    return backing.store.commit(
        turn.spec.tenant,
        name,
        image_of(backing, turn.origin, saved),
        provenance=provenance_of(backing, turn, saved),
        expected_version=expected_version,
        durability=durability,
        idempotency_key=idempotency_key,
        checkpoints=checkpoints_of(backing, checkpoints, saved.n_computed),
    )


def checkpoints_of(
    backing: Backing, checkpoints: Sequence[tuple[Origin | None, Saved]], n_computed: int
) -> list[StateImage]:
    """Images of states on the way, below ``n_computed``. Nothing is pending in them."""
    return [
        image_of(backing, origin, replace(one, pending=()))
        for origin, one in checkpoints
        if one.n_computed < n_computed
    ]


def expected_of(turn: Turn) -> int | None:
    """Where the head has to be when a turn is committed; None for anywhere."""
    use = turn.use
    if turn.expected is not None:
        return turn.expected
    if use.expected_version is not None:
        return use.expected_version
    record = None if turn.origin is None else turn.origin.record
    if record is not None and record.name == use.save_as:
        return record.version
    return None
