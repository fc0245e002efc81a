"""One choice of the engine as text, piece by piece as its ids arrive.

What is shown is final: no character that is not complete, and nothing that may still be, or
begin, a stop string.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from wkvm_client import Completion, EndReason, TokenLogprobs
from wkvm_client.aio import Choice
from wkvm_client.errors import ClientError
from wkvm_client.states import StateEnd

from wkvm.gateway.failures import CANCELLED, CONFLICT, SERVER, HttpError
from wkvm.gateway.text import IncrementalDecoder, StopStrings, StopText
from wkvm.gateway.texts import Texts

FinishReason: TypeAlias = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class Finish:
    """How a choice ended.

    Attributes:
        reason: as OpenAI names it.
        stop_reason: the stop string, or the stop id, that ended it.
        n_output: ids of the output: without a stop id, but with all that made a stop string.
        n_excess: of these, how many the state at the end has that it should not have: the choice
            was over before it could be cut where its stop string begins.
        state: what came of its states; None if it was on none and kept none.
        n_reused: how many tokens of the prompt were not computed for it.
    """

    reason: FinishReason
    stop_reason: str | int | None
    n_output: int
    n_excess: int = 0
    state: StateEnd | None = None
    n_reused: int = 0


@dataclass(slots=True)
class Piece:
    """What has become known of a choice since the last piece.

    Attributes:
        text: may lag behind the ids, while it may still change.
        ids: that arrived.
        logprobs: one for each of ``ids``, if they were asked for.
        finish: set on the last piece.
    """

    text: str
    ids: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish | None

    def then(self, more: "Piece") -> "Piece":
        """This one and the next, as one."""
        logprobs = self.logprobs + more.logprobs
        return Piece(self.text + more.text, self.ids + more.ids, logprobs, more.finish)


@dataclass(slots=True)
class Whole:
    """A choice that is complete: all its pieces as one. How they were cut does not matter."""

    text: str
    ids: list[int]
    logprobs: list[TokenLogprobs]
    finish: Finish


@dataclass(frozen=True, slots=True)
class Times:
    """When a choice had a slot, its first id and its end, in seconds from its request's arrival."""

    queue_s: float | None
    first_s: float | None
    total_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class TextOptions:
    """What a request says of how its ids become text.

    Attributes:
        stops: strings that end a choice, none of them empty.
        include_stop: whether the text has the stop string, or the text of the stop id, at
            its end.
        skip_special: whether special tokens have no text.
        shown: special tokens that have theirs all the same.
        min_tokens: stop strings are not looked for in the text of this many first ids.
        logprobs: whether pieces have log probabilities. The engine must have been asked too.
        clock: in seconds; with it ``ChoiceText.times`` says more.
    """

    stops: Sequence[str] = ()
    include_stop: bool = False
    skip_special: bool = True
    shown: frozenset[int] = frozenset()
    min_tokens: int = 0
    logprobs: bool = False
    clock: Callable[[], float] | None = None


_DEFAULT_OPTIONS = TextOptions()


class ChoiceText:
    """Reads one choice. When a stop string is complete, it gives the choice up.

    The pieces of a choice, put together, are the same however its ids arrived.

    Args:
        cut: of a choice whose state is kept: ends it, so that the state has so many ids of the
            output, whose texts are wholly before the stop string. The last piece then comes
            with the choice's own end.
    """

    def __init__(
        self,
        choice: Choice,
        texts: Texts,
        options: TextOptions = _DEFAULT_OPTIONS,
        *,
        cut: Callable[[int], None] | None = None,
    ) -> None:
        self._choice = choice
        self._cut = cut
        self._stopped_by: Finish | None = None
        self._borders = None if cut is None else Borders()
        self._tokenizer = texts.tokenizer
        self._options = options
        self._decoder = IncrementalDecoder(
            texts.tokenizer, skip_special=options.skip_special, shown=options.shown
        )
        self._matcher = StopStrings(options.stops) if options.stops else None
        self._n_output = 0
        self._clock = clock = options.clock
        self._asked_at = 0.0 if clock is None else clock()
        self._first_at: float | None = None
        self._last_at = self._asked_at

    def times(self) -> Times:
        """How long it took: as the engine has it; if a stop string ended it, by the clock."""
        if self._stopped_by is None and self._choice.is_over:
            timings = self._choice.result.timings
            return Times(timings.queue_s, timings.first_token_s or None, timings.total_s)
        first_at = self._first_at
        first_s = None if first_at is None else first_at - self._asked_at
        return Times(None, first_s, self._last_at - self._asked_at)

    @property
    def n_output(self) -> int:
        """Ids in all pieces so far."""
        return self._n_output

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self._choice.is_over

    @property
    def n_reused(self) -> int:
        """How many tokens of the prompt were not computed for it; known with its first piece."""
        return self._choice.n_reused

    async def read(self) -> Piece:
        """Wait for ids, or the end, and return what they say; not after the last piece.

        Cancelling this loses nothing; the choice goes on.

        Raises:
            ClientError: the engine failed; after the pieces that came before.
            HttpError: 408 if the request's time was over, 499 if it was cancelled; likewise.
        """
        return self._piece(await self._choice.read())

    def take(self) -> Piece | None:
        """As ``read``, but without waiting: None if nothing has arrived.

        Raises:
            ClientError, HttpError: as ``read``.
        """
        ids = self._choice.take()
        return self._piece(ids) if ids or self._choice.is_over else None

    def call_when_ready(self, callback: Callable[[], None]) -> None:
        """Call back once, as soon as ``take`` has something; at once if it has it now."""
        self._choice.call_when_ready(callback)

    def watch(self, callback: Callable[[], None]) -> None:
        """Call back whenever ``take`` may have something, until ``unwatch``; perhaps now."""
        self._choice.watch(callback)

    def unwatch(self) -> None:
        """End ``watch``, perhaps after one more call."""
        self._choice.unwatch()

    def call_when_whole(self, callback: Callable[[], None]) -> None:
        """Call back when it ends, or as soon as it has to be looked at for stop strings.

        For who wants the whole text anyway: without stops it costs one call in all.
        """
        if self._matcher is None:
            self._choice.call_when_over(callback)
        else:
            self._choice.call_when_ready(callback)

    def abandon(self) -> None:
        """Give the choice up: nobody reads further."""
        self._choice.abandon()

    def _piece(self, ids: list[int]) -> Piece:
        if self._stopped_by is not None:
            # What arrives after a stop string is not part of the choice.
            finish = self._ended(self._stopped_by) if self._choice.is_over else None
            return Piece("", [], [], finish)
        if not ids:
            return self._end("", [], self._choice.result)
        if self._clock is not None:
            self._last_at = self._clock()
            if self._first_at is None:
                self._first_at = self._last_at
        text, stop, n_used = self._text(ids)
        if n_used < len(ids):
            del ids[n_used:]
        first = self._n_output
        self._n_output += len(ids)
        logprobs = self._logprobs(first)
        if stop is not None:
            return self._stopped(text, ids, logprobs, stop)
        if self._choice.is_over:
            # The end comes with the last ids; a failure is for the next read.
            try:
                completion = self._choice.result
            except ClientError:
                pass
            else:
                if completion.reason in _REASONS:
                    return self._end(text, ids, completion, logprobs)
        return Piece(text, ids, logprobs, None)

    def _text(self, ids: list[int]) -> tuple[str, str | None, int]:
        """The text of ids, the stop that ends it, and how many ids that took."""
        matcher = self._matcher
        if matcher is None:
            return self._decoder.feed(ids), None, len(ids)
        parts = list[str]()
        borders = self._borders
        n_free = self._options.min_tokens - self._n_output
        for n_used, token_id in enumerate(ids, start=1):
            breaks_off = self._decoder.breaks_off(token_id) if borders is not None else False
            text = self._decoder.feed((token_id,))
            if borders is not None:
                if breaks_off:
                    borders.close()
                borders.add(len(text), is_whole=self._decoder.is_between)
            if n_used <= n_free:
                found = StopText(text)
            elif text:
                found = matcher.feed(text)
            else:
                continue
            parts.append(found.text)
            if borders is not None:
                borders.show(len(found.text))
            if found.stop is not None:
                return "".join(parts), found.stop, n_used
        return "".join(parts), None, len(ids)

    def _logprobs(self, first: int) -> list[TokenLogprobs]:
        if not self._options.logprobs:
            return []
        return list(self._choice.logprobs[first : self._n_output])

    def _end(
        self,
        text: str,
        ids: list[int],
        completion: Completion,
        logprobs: Sequence[TokenLogprobs] = (),
    ) -> Piece:
        """The last piece of a choice that the engine has ended."""
        reason = _REASONS.get(completion.reason)
        if reason is None:
            raise _unfinished(completion)
        last = self._decoder.flush()
        if self._matcher is not None:
            found = self._matcher.feed(last)
            text += found.text
            if found.stop is not None:
                return self._stopped(text, ids, list(logprobs), found.stop)
            last = self._matcher.flush()
        text += last
        stop_id = completion.stop_id
        if stop_id is not None and self._options.include_stop:
            text += self._tokenizer.decode((stop_id,), skip_special=self._options.skip_special)
        finish = Finish(
            reason, stop_id, self._n_output, state=completion.state, n_reused=self.n_reused
        )
        return Piece(text, ids, list(logprobs), finish)

    def _stopped(
        self, text: str, ids: list[int], logprobs: list[TokenLogprobs], stop: str
    ) -> Piece:
        if self._options.include_stop:
            text += stop
        finish = Finish("stop", stop, self._n_output, n_reused=self.n_reused)
        if self._cut is None or self._borders is None:
            self._choice.abandon()
            return Piece(text, ids, logprobs, finish)
        n_kept = self._n_output if self._options.include_stop else self._borders.n_shown
        self._stopped_by = finish = replace(finish, n_excess=self._n_output - n_kept)
        if self._choice.is_over:
            return Piece(text, ids, logprobs, self._ended(finish))
        self._cut(n_kept)
        return Piece(text, ids, logprobs, None)

    def _ended(self, finish: Finish) -> Finish:
        """How a choice whose state is kept ended, now that it has.

        Raises:
            ClientError: it failed, and nothing was kept.
            HttpError: as ``read``.
        """
        completion = self._choice.result
        n_kept = finish.n_output - finish.n_excess
        if completion.reason in (EndReason.TIMED_OUT, EndReason.MOVED):
            raise _unfinished(completion)
        # One that has ended by itself meanwhile has all its ids in its state, and a stop id.
        is_cut = completion.reason is EndReason.CANCELLED
        n_more = completion.n_output + (completion.stop_id is not None) - n_kept
        return replace(finish, n_excess=0 if is_cut else n_more, state=completion.state)


class Borders:
    """Between which ids of an output the text is cut that is shown: for a state that ends there."""

    def __init__(self) -> None:
        self._n_ids = 0
        self._n_characters = 0
        self._n_shown_characters = 0
        self._after = deque[tuple[int, int]]()
        self.n_shown = 0

    def add(self, n_characters: int, *, is_whole: bool) -> None:
        """An id came, and so many characters with it; ``is_whole`` if it ends with a character."""
        self._n_ids += 1
        self._n_characters += n_characters
        if is_whole:
            self._after.append((self._n_ids, self._n_characters))

    def close(self) -> None:
        """What the ids so far end with, and was held back, is a character: the next one."""
        self._after.append((self._n_ids, self._n_characters + 1))

    def show(self, n_characters: int) -> None:
        """So many more characters are certainly before any stop string.

        ``n_shown`` is then how many ids, from the first, have no text beyond these.
        """
        self._n_shown_characters += n_characters
        while self._after and self._after[0][1] <= self._n_shown_characters:
            self.n_shown, _ = self._after.popleft()


_REASONS: dict[EndReason, FinishReason] = {EndReason.STOP: "stop", EndReason.LENGTH: "length"}


def _unfinished(completion: Completion) -> HttpError:
    """What an end that is not of the text's own making is for an HTTP client."""
    if completion.reason is EndReason.TIMED_OUT:
        return HttpError(408, "the request's time was over before it was", SERVER, code="timeout")
    if completion.reason is EndReason.MOVED and completion.state is not None:
        why = f"the state has moved to {completion.state.target}, as {completion.state.ref}"
        return HttpError(409, f"{why}: go on there", CONFLICT, code="state_moved")
    return HttpError(499, "the request was cancelled", SERVER, code=CANCELLED)
