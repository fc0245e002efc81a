"""Log probabilities as they came: numbers, which become objects where they are read."""

from array import array
from collections.abc import Sequence
from typing import cast, overload

from wkvm_protocol.messages import Logprobs, unpack_floats, unpack_ids

from wkvm_client.results import TokenLogprobs, TopLogprob


class PackedLogprobs(Sequence[TokenLogprobs]):
    """Log probabilities of the ids of a choice. Only ever added to.

    An entry takes 16 bytes, and 8 for each of its most likely ids: a tenth of what it takes as an
    object. What is read of it is made anew each time; a slice is a list.
    """

    __slots__ = ("_ids", "_logprobs", "_ranks", "_top_ends", "_top_ids", "_top_logprobs")

    def __init__(self) -> None:
        self._ids, self._ranks = array("I"), array("I")
        self._logprobs = array("f")
        self._top_ids, self._top_logprobs = array("I"), array("f")
        self._top_ends = array("I")  # of each entry; a message may bring fewer than another

    def add(self, message: Logprobs) -> None:
        """Take the entries of a message. The codec has checked the lengths."""
        ids = unpack_ids(message.ids)
        self._ids.extend(ids)
        self._logprobs.extend(unpack_floats(message.logprobs))
        self._ranks.extend(unpack_ids(message.ranks))
        n_before = len(self._top_ids)
        self._top_ids.extend(unpack_ids(message.top_ids))
        self._top_logprobs.extend(unpack_floats(message.top_logprobs))
        n_top = message.n_top
        self._top_ends.extend([n_before + n_top * n for n in range(1, len(ids) + 1)])

    def __len__(self) -> int:
        """How many entries there are."""
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> TokenLogprobs: ...
    @overload
    def __getitem__(self, at: slice) -> list[TokenLogprobs]: ...
    def __getitem__(self, at: int | slice) -> TokenLogprobs | list[TokenLogprobs]:
        """An entry, or a list of some."""
        if isinstance(at, slice):
            return [self._entry(index) for index in range(*at.indices(len(self)))]
        return self._entry(range(len(self))[at])

    def _entry(self, index: int) -> TokenLogprobs:
        first, end = self._top_ends[index - 1] if index else 0, self._top_ends[index]
        tops = zip(self._top_ids[first:end], self._top_logprobs[first:end], strict=True)
        return TokenLogprobs(
            self._ids[index],
            self._logprobs[index],
            self._ranks[index],
            tuple([TopLogprob(*top) for top in tops]),
        )

    def __eq__(self, other: object) -> bool:
        """Whether a sequence has the same entries."""
        if not isinstance(other, Sequence):
            return False
        return self[:] == list(cast("Sequence[object]", other))

    __hash__ = None  # type: ignore[assignment]  # as of a list

    def __repr__(self) -> str:
        """As a list has it."""
        return repr(self[:])
