"""What a consumer sees of a lane and of its choices without waiting: the same in both clients."""

from collections.abc import Sequence
from typing import Generic, TypeVar

from wkvm_client.lanes import Lane
from wkvm_client.results import Completion, TokenLogprobs
from wkvm_client.tracks import Track


class ChoiceView:
    """One completion, as far as it has come."""

    def __init__(self, track: Track) -> None:
        self._track = track

    @property
    def index(self) -> int:
        """Which of the ``n`` choices this is."""
        return self._track.index

    @property
    def ids(self) -> list[int]:
        """The ids that have arrived so far, taken or not. A copy."""
        return self._track.ids.tolist()

    @property
    def n_ids(self) -> int:
        """How many ids have arrived so far, taken or not."""
        return len(self._track.ids)

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """Log probabilities so far: at least one entry for each id that has arrived.

        Empty if none were asked for. Not a copy. They are kept as they came, and an entry is made
        each time that it is read, which takes microseconds: read a slice of what is new.
        """
        logprobs = self._track.logprobs
        return () if logprobs is None else logprobs

    @property
    def n_reused(self) -> int:
        """How many tokens of the prompt were not computed for it; known before its first id.

        What a state had absorbed that it goes on from is not among them.
        """
        return self._track.n_reused

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self._track.is_over

    @property
    def result(self) -> Completion:
        """What became of it. To be asked for once it is over.

        Raises:
            ClientError: the lane failed.
        """
        return self._track.result()


ChoiceT = TypeVar("ChoiceT", bound=ChoiceView)


class LaneView(Generic[ChoiceT]):
    """One request, as far as it has come.

    Attributes:
        choices: one for each of the ``n`` completions.
    """

    def __init__(self, lane: Lane, choices: tuple[ChoiceT, ...]) -> None:
        self._lane = lane
        self.choices = choices

    @property
    def ids(self) -> list[int]:
        """As of the only choice."""
        return self._only.ids

    @property
    def logprobs(self) -> Sequence[TokenLogprobs]:
        """As of the only choice."""
        return self._only.logprobs

    @property
    def request_id(self) -> int:
        """The lane's number on its connection."""
        return self._lane.request_id

    @property
    def prompt(self) -> bytes:
        """The ids that were sent, as on the wire: four bytes each. Not a copy."""
        return self._lane.draft.message.prompt

    @property
    def moved_to(self) -> str:
        """The address of the server that it has moved to; empty where it has not."""
        return self._lane.moved_to

    def starts_after(self, n_tokens: int | None) -> None:
        """Say how many tokens the state has that it starts from, right after it was sent.

        Then it can be followed to where the state is, if it has moved meanwhile.
        """
        self._lane.n_tokens = n_tokens

    @property
    def prompt_logprobs(self) -> list[TokenLogprobs]:
        """Log probabilities of the prompt's ids but the first, as far as they have come."""
        return self._lane.prompt_logprobs

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive for any choice."""
        return self._lane.is_over

    @property
    def _only(self) -> ChoiceT:
        if len(self.choices) != 1:
            raise ValueError(f"a stream of {len(self.choices)} choices: read them in `choices`")
        return self.choices[0]
