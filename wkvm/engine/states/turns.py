"""What the service knows of a request that uses states, from its arrival to its end."""

import asyncio
import enum
from array import array
from dataclasses import dataclass, field

from wkvm.core.registry import Ref, VersionRecord
from wkvm.core.request import EndEvent, RequestSpec
from wkvm.core.start import Saved
from wkvm.core.states import StateUse
from wkvm.engine.states.gate import Place
from wkvm.state.image import StateImage


class Phase(enum.Enum):
    """Where a turn is.

    LOADING: its start is fetched. RUNNING: the engine has it. ENDING: its end waits for the
    commit. PARKED: it was interrupted and committed, and may go on. OVER: its end was told.
    """

    LOADING = "loading"
    RUNNING = "running"
    ENDING = "ending"
    PARKED = "parked"
    OVER = "over"


PHASES: dict[Phase, frozenset[Phase]] = {
    Phase.LOADING: frozenset({Phase.RUNNING, Phase.ENDING, Phase.OVER}),
    Phase.RUNNING: frozenset({Phase.ENDING, Phase.OVER}),
    Phase.ENDING: frozenset({Phase.PARKED, Phase.OVER}),
    Phase.PARKED: frozenset({Phase.RUNNING, Phase.OVER}),
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
        asked: as it came, without a start.
        spec: the same; of one that was parked, what is left of it.
        use: what it does with states.
        began_at: when it came, by the loop's clock.
        phase: where it is.
        origin: what it starts from; None until that is loaded, and where it starts from nothing.
        task: what loads its start, or commits its end.
        credit: what was granted since it came.
        held: whether it is held.
        place: that it has among those that may have loaded their starts.
        is_detached: nobody listens: no credit is asked of it, and no hold applies.
        is_unlimited: the engine has been told to go on without a limit of credit.
        is_cancelled: nobody wants it any more, and nothing of it is to be kept.
        is_interrupted: it ends where it is, and is committed nevertheless.
        keep: how many of its ids stay, if that was said.
        expected: where the head of what it is committed to has to be, if not as its use says:
            a version was made of it on the way.
        commits: held by whoever commits something of it.
        outputs: its ids so far, where somebody may ask for them again.
        n_told: how many ids it had produced when it was parked last.
        parking: who waits until it is parked, or over.
        goes_on: who had it parked has given that up.
        is_committed: its end is a version.
        first_start, first_cached: of its first start, once it was parked.
        checkpoints: states on the way, each with what it went on from.
        snapshots: who waits for a copy of its state as it runs, and of the turn as it was then.
        waiting: who waits for its end within the service.
    """

    ids: set[int]
    asked: RequestSpec
    spec: RequestSpec
    use: StateUse
    began_at: float
    phase: Phase = Phase.LOADING
    origin: Origin | None = None
    task: asyncio.Task[None] | None = None
    credit: int = 0
    held: bool = False
    place: Place | None = None
    is_detached: bool = False
    is_unlimited: bool = False
    is_cancelled: bool = False
    is_interrupted: bool = False
    is_committed: bool = False
    goes_on: bool = False
    keep: int | None = None
    n_told: int = 0
    parking: "asyncio.Future[None] | None" = None
    first_start: Ref | None = None
    first_cached: int | None = None
    expected: int | None = None
    commits: asyncio.Lock = field(default_factory=asyncio.Lock)
    outputs: "array[int] | None" = None
    checkpoints: list[tuple[Origin | None, Saved]] = field(
        default_factory=list[tuple[Origin | None, Saved]]
    )
    snapshots: list["asyncio.Future[tuple[Turn, Saved]]"] = field(
        default_factory=list["asyncio.Future[tuple[Turn, Saved]]"]
    )
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
    def is_wanted(self) -> bool:
        """Whether anybody within the service waits for its end."""
        return any(not one.done() for one in self.waiting)

    @property
    def start(self) -> Ref | None:
        """The version that it started from."""
        if self.first_cached is not None:
            return self.first_start
        return None if self.origin is None else self.origin.ref

    @property
    def pending(self) -> tuple[int, ...]:
        """Ids that are fed before the prompt."""
        return () if self.origin is None else self.origin.pending

    @property
    def cached_tokens(self) -> int:
        """Tokens that the start had absorbed."""
        if self.first_cached is not None:
            return self.first_cached
        return self.n_start

    @property
    def n_start(self) -> int:
        """Tokens that what it goes on from had absorbed, now that it may have been parked."""
        return 0 if self.origin is None else self.origin.image.carried.n_computed
