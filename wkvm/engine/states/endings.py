"""What a turn ends in: its state, cut to what is kept of it, and committed."""

from collections.abc import Sequence
from dataclasses import replace

from wkvm.core.errors import InvalidParameterError
from wkvm.core.registry import VersionRecord
from wkvm.core.request import EndEvent
from wkvm.core.start import Saved, Start
from wkvm.engine.states.backing import Backing
from wkvm.engine.states.commits import commit_turn, image_of
from wkvm.engine.states.origins import start_of
from wkvm.engine.states.paths import path_of
from wkvm.engine.states.runs import Runs, again_spec, with_key_of
from wkvm.engine.states.tellings import start_end
from wkvm.engine.states.turns import Turn
from wkvm.state.image import StateImage, encode_image


class Endings:
    """Commits turns. On the loop's thread; what takes time is done in others.

    Attributes:
        n_commits: versions that were made so.
    """

    def __init__(self, backing: Backing, runs: Runs) -> None:
        self._backing = backing
        self._runs = runs
        self.n_commits = 0

    async def committed(self, turn: Turn, event: EndEvent) -> EndEvent:
        """The end of a turn once its state is committed.

        Raises:
            WkvmError: nothing was kept.
        """
        saved, use, backing = event.saved, turn.use, self._backing
        if saved is None:
            raise ValueError("a turn without a state is to be committed")
        n_output = event.n_output
        keep = n_kept(turn, n_output)
        if keep < n_output:
            saved, n_output = await self._cut(turn, saved, keep), keep
        n_fed = len(turn.pending) + len(turn.spec.prompt)
        n_had = len(saved.absorbed) + len(saved.pending)
        if n_had == 0:
            raise InvalidParameterError("state", "nothing was absorbed yet, so nothing is kept")
        record, image = await self._keep(turn, saved)
        inline = None
        if use.returns_state:
            inline = await backing.threads.read(lambda: encode_image(image).tobytes())
        state = replace(
            start_end(turn),
            ref=None if record is None else record.ref,
            ack=None if record is None else backing.told(record).ack,
            n_computed=saved.n_computed,
            pending=saved.pending,
            prompt_left=max(n_fed - n_had, 0),
            inline=inline,
        )
        return replace(event, n_output=n_output, saved=None, state=state)

    async def _keep(self, turn: Turn, saved: Saved) -> tuple[VersionRecord | None, StateImage]:
        """Commit what a turn ends in, or make its image where it is not kept."""
        backing, name = self._backing, turn.use.save_as
        if name is None:
            return None, image_of(backing, turn.origin, saved)
        async with turn.commits:
            record, image = await backing.threads.write(
                lambda: commit_turn(backing, turn.spec.tenant, name, turn, saved)
            )
            turn.is_committed = True
        self.n_commits += 1
        return record, image

    async def _cut(self, turn: Turn, saved: Saved, keep: int) -> Saved:
        """The state of a turn after its first ``keep`` ids.

        It is done again so far, from the last of its checkpoints before there, or its start.
        """
        n_fed = len(turn.pending) + len(turn.spec.prompt)
        ids = [*saved.absorbed, *saved.pending][: n_fed + keep]
        turn.checkpoints = [
            (origin, one)
            for origin, one in turn.checkpoints
            if one.n_computed < turn.n_start + len(ids)
        ]
        mine = [one for origin, one in turn.checkpoints if origin is turn.origin]
        if mine:
            again = await self._go_on(turn, mine[-1], ids, n_fed)
        else:
            spec = again_spec(
                None if turn.origin is None else start_of(turn.origin),
                turn.spec.prompt,
                ids[n_fed:],
                like=turn.spec,
            )
            again = await self._runs.run(spec)
        return with_key_of(again, saved.memory)

    async def _go_on(self, turn: Turn, checkpoint: Saved, ids: Sequence[int], n_fed: int) -> Saved:
        """The state of a turn after ``ids``, of which ``n_fed`` were given, from a checkpoint."""
        before = list(checkpoint.absorbed)
        path = path_of(ids, len(before), n_fed)
        if path.n_ids == 1:
            return replace(checkpoint, pending=(*path.pending, *path.prompt))
        start = Start(
            record=checkpoint.record,
            n_computed=checkpoint.n_computed,
            pending=path.pending,
            memory=checkpoint.memory,
            log=[*([] if turn.origin is None else turn.origin.image.ids()), *before],
        )
        again = await self._runs.run(again_spec(start, path.prompt, path.outputs, like=turn.spec))
        memory = again.memory
        if memory is not None and len(ids) > n_fed:
            memory = replace(memory, n_generated=len(ids) - n_fed)
        return replace(again, absorbed=[*before, *again.absorbed], memory=memory)


def n_kept(turn: Turn, n_output: int) -> int:
    """How many of the ids that a turn produced since it was parked last stay in its state.

    Raises:
        InvalidParameterError: some of those before it are not to stay.
    """
    if turn.keep is None:
        return n_output
    if turn.keep < turn.n_told:
        raise InvalidParameterError("keep", "of what came before a move was given up, roll back")
    return min(turn.keep - turn.n_told, n_output)
