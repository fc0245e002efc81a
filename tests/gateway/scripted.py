"""Output that a test decides: a model that follows a script, and a choice that a test fills."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from wkvm_client.aio import Choice
from wkvm_client.drafts import Draft
from wkvm_client.errors import ClientError
from wkvm_client.lanes import Lane
from wkvm_protocol.messages import (
    End,
    EndReason,
    Generate,
    Logprobs,
    Sampling,
    pack_floats,
    pack_ids,
)

from tests.fakes import FakeModel
from wkvm.core.config import EngineConfig
from wkvm.engine.engine import Engine
from wkvm.models.base import Batch, StateViews

OTHER = -4.0
"""The logit of every id that the script does not name."""


class ScriptModel(FakeModel):
    """Ids are bytes. After a prompt of one id it says the script, after longer ones what follows.

    The script begins again at its end.
    """

    def __init__(self, script: bytes, eos_ids: tuple[int, ...] = ()) -> None:
        super().__init__(vocab_size=256, eos_ids=eos_ids)
        self._script = script

    def forward(self, batch: Batch, states: StateViews) -> Tensor:
        """The state is how many ids it has absorbed."""
        self.n_forwards += 1
        if self.before_forward is not None:
            self.before_forward(batch)
        counts = states["fake.hash"]
        after = list[int]()
        for slot, length in zip(batch.slot_list, batch.lengths, strict=True):
            first = int(counts[slot, 0]) if slot >= 0 else 0
            after += range(first + 1, first + length + 1)
            if slot >= 0:
                counts[slot, 0] = first + length
        wanted = batch.logit_rows.tolist()
        logits = torch.full((len(wanted), 256), OTHER)
        for row, index in enumerate(wanted):
            logits[row, self._script[(after[index] - 1) % len(self._script)]] = 4.0
        return logits


def script_engine(script: bytes, *, n_slots: int = 8, eos_ids: tuple[int, ...] = ()) -> Engine:
    return Engine(ScriptModel(script, eos_ids), EngineConfig(n_slots=n_slots))


class FilledChoice:
    """A choice whose ids come from the test, not from a server.

    Attributes:
        choice: for who reads.
        cancelled: whether its lane was cancelled.
    """

    def __init__(self, *, max_tokens: int = 1 << 20) -> None:
        sampling = Sampling(max_tokens=max_tokens, logprobs=0)
        draft = Draft(Generate(request_id=0, prompt=b"\0" * 4, sampling=sampling), None, None)
        self._lane = Lane(1, draft, self)
        self.cancelled = False
        self.choice = Choice(self._lane.tracks[0])

    def grant(self, lane: Lane, n_ids: int) -> None:
        """What a connection does for who reads."""

    def when_received(self, callback: Callable[[], None]) -> None:
        """What a connection does that has taken in all that came."""
        callback()

    def hook(self, callback: Callable[[], None]) -> Callable[[], None]:
        """What a connection has called for each id."""
        return callback

    def cancel(self, lane: Lane) -> None:
        """What a connection does for a choice."""
        assert lane is self._lane
        self.cancelled = True

    def interrupt(self, lane: Lane, keep: int | None) -> None:
        """What a connection does for a choice."""

    def give_up(self, lane: Lane, error: ClientError) -> None:
        """What a connection does for a deadline."""

    def arrive(self, ids: Sequence[int]) -> None:
        track = self._lane.tracks[0]
        assert track.logprobs is not None, "they were asked for"
        numbers = pack_floats([-0.5] * len(ids)), pack_ids([1] * len(ids))
        track.logprobs.add(Logprobs(1, 0, False, 0, 0, pack_ids(list(ids)), *numbers, b"", b""))
        track.ids.extend(ids)
        track.wake()

    def end(self, reason: EndReason = EndReason.LENGTH, stop_id: int | None = None) -> None:
        n_output = len(self._lane.tracks[0].ids)
        self._lane.end(End(1, 0, reason, stop_id, 1, n_output, 0, 0, 0))

    def fail(self, error: ClientError) -> None:
        self._lane.fail(error)
