"""Grammars to constraints: what may come next, by llguidance.

Grammars are compiled in threads of their own, a few at a time; what was compiled last is kept.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import Constraint, Grammar, Unbound
from wkvm.engine import guidance
from wkvm.engine.guidance import Compiled, read_vocabulary, why_of
from wkvm.engine.json_numbers import NumberIds, Numbers
from wkvm.engine.without import Source, Without, read_source

if TYPE_CHECKING:
    import llguidance

logger = logging.getLogger(__name__)

N_KEPT = 16
"""Compiled grammars that are kept. A large one can take tens of MiB."""

N_COMPILING = 4
"""Grammars that are compiled at a time, so that a slow one keeps few others waiting."""

STACK_BYTES = 128 * 2**20
"""Stack of the thread that compiles. A grammar may nest as deep as it is long, each level
takes a few KiB, and overflow would end the process. What is not used costs no memory."""

ALLOWANCE_S, MEAN_S = 1.0, 0.005
"""How long the masks of one request may take, of this thread's own time: the first at once, the
second for each. All rows of a step wait for them. A usual mask takes a hundredth of the second."""


class GrammarCompiler:
    """Makes constraints for requests that have grammars.

    All methods belong to the thread that plans steps, as to which ``Follower`` says more.

    Args:
        token_bytes: by id, the bytes that it stands for; none for ids that are not text, such
            as those that end a turn. Missing ones have none, and those beyond the
            vocabulary are left out.
        vocab_size: of the model.
    """

    def __init__(self, token_bytes: Sequence[bytes], *, vocab_size: int) -> None:
        self._token_bytes = token_bytes
        self._vocab_size = vocab_size
        self._tokenizer: llguidance.LLTokenizer | None = None
        self._number_ids: NumberIds | None = None
        self._kept = OrderedDict[Grammar, Compiled]()
        self._waiting = dict[Grammar, list[Unbound]]()
        self._without = dict[int, Source]()
        self._ready = list[tuple[int, Constraint | InvalidParameterError]]()
        self._finished = deque[tuple[Grammar, Compiled]]()
        self._compiling = set[Grammar]()
        self._preparing = threading.Lock()
        self._has_finished = threading.Event()
        self.wake: Callable[[], None] = _ignore
        """Called from another thread when ``turn`` has something to return."""

    def prepare(self) -> None:
        """Import llguidance and read the vocabulary, which takes up to a second.

        Meanwhile no other thread of the process runs, so a server does this before it serves.

        Raises:
            MissingExtraError: llguidance is not installed.
        """
        with self._preparing:
            if self._tokenizer is None:
                self._tokenizer = read_vocabulary(self._token_bytes, self._vocab_size)

    def want(self, unbound: Iterable[Unbound]) -> None:
        """Take on requests; ``turn`` returns their constraints."""
        for request in unbound:
            if request.grammar.kind == "without":
                self._want_without(request)
            else:
                self._waiting.setdefault(request.grammar, []).append(request)

    def _want_without(self, request: Unbound) -> None:
        """Take on a request whose output lacks something, and perhaps follows a grammar too."""
        try:
            source = read_source(request.grammar, self._vocab_size)
            grammar = source.grammar
            if grammar is None:
                constraint = self._lacking(source, request, None)
                self._ready.append((request.request_id, constraint))
                return
        except InvalidParameterError as error:
            self._ready.append((request.request_id, error))
            return
        self._without[request.request_id] = source
        inner = request._replace(grammar=grammar)
        self._waiting.setdefault(grammar, []).append(inner)

    def _lacking(self, source: Source, request: Unbound, inner: Constraint | None) -> Without:
        without = Without(
            source.ids, self._vocab_size, allowed_ids=request.allowed_ids, inner=inner
        )
        without.note(request.told)
        return without

    def turn(
        self, is_wanted: Callable[[int], bool]
    ) -> list[tuple[int, Constraint | InvalidParameterError]]:
        """What has become of grammars since the last call; starts to compile the next ones.

        Args:
            is_wanted: whether a request, by its id, has not ended meanwhile.

        Returns:
            For each request whose grammar is ready its constraint, or what is wrong with it.
        """
        self._has_finished.clear()
        while self._finished:
            grammar, compiled = self._finished.popleft()
            self._compiling.discard(grammar)
            self._kept[grammar] = compiled
            if len(self._kept) > N_KEPT:
                self._kept.popitem(last=False)
        ready, self._ready = self._ready, []
        for grammar in list(self._waiting):
            wanted = [one for one in self._waiting[grammar] if is_wanted(one.request_id)]
            for one in self._waiting[grammar]:
                if self._without and not is_wanted(one.request_id):
                    self._without.pop(one.request_id, None)
            if grammar in self._kept:
                compiled = self._kept[grammar]
                self._kept.move_to_end(grammar)
                ready += [(one.request_id, self._bound(one, compiled)) for one in wanted]
            elif wanted:
                self._waiting[grammar] = wanted
                continue
            del self._waiting[grammar]
        for grammar in self._waiting:
            if len(self._compiling) >= N_COMPILING:
                break
            if grammar not in self._compiling:
                self._start(grammar)
        return ready

    def wait(self) -> bool:
        """Wait for one of the grammars that are being compiled. Returns whether there was one."""
        if self._compiling:
            self._has_finished.wait()
        return bool(self._compiling)

    def _bound(self, request: Unbound, compiled: Compiled) -> Constraint | InvalidParameterError:
        source = self._without.pop(request.request_id, None)
        inner = self._follower(request, compiled)
        if source is None or isinstance(inner, InvalidParameterError):
            return inner
        return self._lacking(source, request, inner)

    def _follower(self, request: Unbound, compiled: Compiled) -> "Follower | InvalidParameterError":
        if isinstance(compiled, str):
            return InvalidParameterError("grammar", compiled)
        follower = Follower(
            compiled.deep_copy(),
            vocab_size=self._vocab_size,
            stops=request.stops,
            allowed_ids=request.allowed_ids,
            numbers=self._numbers() if request.grammar.kind == "json_schema" else None,
        )
        try:
            for token_id in request.told:
                follower.advance(token_id)
        except InvalidParameterError as error:
            return error
        return follower

    def _numbers(self) -> Numbers:
        if self._number_ids is None:
            self._number_ids = NumberIds(self._token_bytes[: self._vocab_size])
        return Numbers(self._number_ids)

    def _start(self, grammar: Grammar) -> None:
        self._compiling.add(grammar)
        thread = threading.Thread(
            target=self._work, args=(grammar,), name="wkvm-grammar", daemon=True
        )
        usual_bytes = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(usual_bytes)

    def _work(self, grammar: Grammar) -> None:
        try:
            self.prepare()
            assert self._tokenizer is not None
            compiled = guidance.compiled_of(grammar, self._tokenizer)
        except BaseException:  # where llguidance panics it is no Exception
            logger.exception("a grammar could not be compiled")
            compiled = "it could not be compiled; see the server's log"
        self._finished.append((grammar, compiled))
        self._has_finished.set()
        self.wake()


class Follower:
    """The constraint of one request. See ``Constraint`` for its methods.

    Made in the thread that plans; used in the thread that runs steps; never in both at once.
    """

    def __init__(
        self,
        matcher: "llguidance.LLMatcher",
        *,
        vocab_size: int,
        stops: Collection[int],
        allowed_ids: Sequence[int] | None,
        numbers: Numbers | None,
    ) -> None:
        self._matcher = matcher
        self._numbers = numbers
        self._vocab_size = vocab_size
        self._stops = frozenset(stops)
        self._allowed_ids = allowed_ids
        self._allowed: int | None = None
        self._time_left_s = ALLOWANCE_S

    @property
    def may_end(self) -> bool:
        """Whether the output so far is a text of the grammar."""
        return self._matcher.is_accepting()

    def next_ids(self, *, may_stop: bool) -> bytes:
        """Which ids may come next. Microseconds, for large grammars milliseconds."""
        began = time.thread_time()
        bits = bytearray(self._matcher.compute_bitmask())
        _check(self._matcher)
        self._time_left_s += MEAN_S - (time.thread_time() - began)
        if self._time_left_s < 0:
            raise InvalidParameterError("grammar", "what may come next takes too long to find out")
        n_bytes = -(-self._vocab_size // 8)
        # llguidance's own end is behind the vocabulary.
        _clear(bits, self._vocab_size)
        del bits[n_bytes:]
        stops_count = may_stop and bool(self._stops) and self.may_end
        for stop in self._stops:
            if stops_count:
                bits[stop >> 3] |= 1 << (stop & 7)
            else:
                _clear(bits, stop)
        mask = bytes(bits)
        if self._numbers is not None:
            mask = self._numbers.limit(mask, may_end=self.may_end, after=self._after)
        if self._allowed_ids is None:
            return mask
        if self._allowed is None:
            allowed = bytearray(n_bytes)
            for token_id in self._allowed_ids:
                allowed[token_id >> 3] |= 1 << (token_id & 7)
            self._allowed = int.from_bytes(allowed)
        return (int.from_bytes(mask) & self._allowed).to_bytes(n_bytes)

    def _after(self, token_id: int) -> tuple[bytes, bool]:
        """What may come after an id that may come next, and whether the output may end there."""
        matcher = self._matcher.deep_copy()
        matcher.consume_token(token_id)
        bits = bytearray(matcher.compute_bitmask())
        _clear(bits, self._vocab_size)
        return bytes(bits[: -(-self._vocab_size // 8)]), matcher.is_accepting()

    def advance(self, token_id: int) -> bool:
        """Take note of an id that was chosen; whether nothing may follow."""
        if token_id in self._stops:
            return False
        self._matcher.consume_token(token_id)
        _check(self._matcher)
        if self._numbers is not None:
            self._numbers.advance(token_id)
        return self._matcher.is_stopped()


def _ignore() -> None:
    """Nobody sleeps."""


def _clear(bits: bytearray, token_id: int) -> None:
    bits[token_id >> 3] &= ~(1 << (token_id & 7)) & 0xFF


def _check(matcher: "llguidance.LLMatcher") -> None:
    if matcher.is_error():
        raise InvalidParameterError("grammar", why_of(matcher.get_error()))
