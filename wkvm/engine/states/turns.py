"""What the service knows of a request that uses states, from its arrival to its end."""

import asyncio
import enum
from array import array
from dataclasses import dataclass, field

from wkvm.core.registry import Ref, VersionRecord
from wkvm.core.request import EndEvent, RequestSpec
from wkvm.core.start import Saved
from wkvm.core.states import StateUse
from wkvm.state.image import StateImage


class Phase(enum.Enum):
    """Where a turn is.

    LOADING: its start is fetched. RUNNING: the engine has it. ENDING: its end waits for the
    commit. OVER: its end was told.
    """

    LOADING = "loading"
    RUNNING = "running"
    ENDING = "ending"
    OVER = "over"


PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.LOADING: frozenset({Phase.RUNNING, Phase.ENDING, Phase.OVER}),
    Phase.RUNNING: frozenset({Phase.ENDING, Phase.OVER}),
    Phase.ENDING: frozenset({Phase.OVER}),
    Phase.OVER: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Origin:
    """The state that a turn starts from.

    Attributes:
        image: its bytes.
        record: its version; None where it has no name.
        pending: what is fed before the prompt.
    """

    image: StateImage
    record: VersionRecord | None
    pending: tuple[int, ...]

    @property
    def ref(self) -> Ref | None:
        """Name and version."""
        return None if self.record is None else self.record.ref


@dataclass(slots=True, eq=False)
class Turn:
    """A request that uses states. Mutable, and nobody's but the service's.

    Attributes:
        ids: of its choices that have not ended.
        spec: as it came, without a start.
        use: what it does with states.
        began_at: when it came, by the loop's clock.
        phase: where it is.
        origin: what it starts from; None until that is loaded, and where it starts from nothing.
        task: what loads its start, or commits its end.
        credit: what was granted while it was loading.
        held: whether it was held while it was loading.
        is_detached: nobody listens; its events are dropped.
        is_interrupted: it ends where it is, and is committed nevertheless.
        keep: how many of its ids stay, if that was said.
        expected: where the head of what it is committed to has to be, if not as its use says:
            a version was made of it on the way.
        commits: held by whoever commits something of it.
        outputs: its ids so far, where somebody may ask for them again.
        checkpoints: states on the way.
        snapshots: who waits for a copy of its state as it runs.
        waiting: who waits for its end within the service.
    """

    ids: set[int]
    spec: RequestSpec
    use: StateUse
    began_at: float
    phase: Phase = Phase.LOADING
    origin: Origin | None = None
    task: asyncio.Task[None] | None = None
    credit: int = 0
    held: bool = False
    is_detached: bool = False
    is_interrupted: bool = False
    keep: int | None = None
    expected: int | None = None
    commits: asyncio.Lock = field(default_factory=asyncio.Lock)
    outputs: "array[int] | None" = None
    checkpoints: list[Saved] = field(default_factory=list[Saved])
    snapshots: list["asyncio.Future[Saved]"] = field(default_factory=list["asyncio.Future[Saved]"])

    waiting: list["asyncio.Future[EndEvent]"] = field(
        default_factory=list["asyncio.Future[EndEvent]"]
    )

    def move(self, phase: Phase) -> None:
        """Change the phase.

        Raises:
            ValueError: ``PHASES`` has no such change.
        """
        if phase not in PHASES[self.phase]:
            raise ValueError(f"a turn goes from {self.phase} to {phase}")
        self.phase = phase

    @property
    def pending(self) -> tuple[int, ...]:
        """Ids that are fed before the prompt."""
        return () if self.origin is None else self.origin.pending

    @property
    def cached_tokens(self) -> int:
        """Tokens that the start had absorbed."""
        return 0 if self.origin is None else self.origin.image.carried.n_computed
