"""Grammars to constraints: what may come next, by llguidance.

Grammars are compiled in threads of their own, a few at a time; what was compiled last is kept.
Only here is llguidance known, and it is imported when the first grammar comes, or ``prepare`` is
called.
"""

import importlib.util
import json
import logging
import re
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wkvm.core.errors import InvalidParameterError, MissingExtraError
from wkvm.core.grammar import Constraint, Grammar, Unbound
from wkvm.engine.json_numbers import NumberIds, Numbers
from wkvm.engine.without import Source, Without, read_source

if TYPE_CHECKING:
    import llguidance

logger = logging.getLogger(__name__)

_Compiled: TypeAlias = "llguidance.LLMatcher | str"
"""A matcher at the beginning of a grammar, or what is wrong with the grammar."""

N_KEPT = 16
"""Compiled grammars that are kept. A large one can take tens of MiB."""

N_COMPILING = 4
"""Grammars that are compiled at a time, so that a slow one keeps few others waiting."""

STACK_BYTES = 128 * 2**20
"""Stack of the thread that compiles. A grammar may nest as deep as it is long, each level
takes a few KiB, and overflow would end the process. What is not used costs no memory."""

MAX_ITEMS_IN_ROW = 600
MAX_STEP_ITEMS = 10_000
INITIAL_FUEL = 500_000
STEP_FUEL = 100_000
MAX_LEXER_STATES = 20_000
MAX_SYMBOLS = 100_000
"""What a grammar may cost, in llguidance's terms. It keeps a step of the worst one at about
0.1 s and its compilation at a few seconds; those that people write stay far below."""

ALLOWANCE_S, MEAN_S = 1.0, 0.005
"""How long the masks of one request may take, of this thread's own time: the first at once, the
second for each. All rows of a step wait for them. A usual mask takes a hundredth of the second."""

WHITE_SPACE = r"[ \n\r\t]{1,40}"
"""Between the parts of a JSON value. A model that is unsure would produce it without end."""

# At the end: what comes later counts, and the lines of the grammar keep their numbers. Without
# this only one way to divide forced text into ids would be allowed, and it asks for a tokenizer.
_OPTIONS = '\n%llguidance {"no_forcing": true}'

MAX_WHY = 400
_EXCERPT = re.compile(r"\n\s*\d+ \| .*|\n?<(?:state|non-verbose/)>.*", re.DOTALL)


def can_compile() -> bool:
    """Whether llguidance is installed."""
    return importlib.util.find_spec("llguidance") is not None


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
        self._kept = OrderedDict[Grammar, _Compiled]()
        self._waiting = dict[Grammar, list[Unbound]]()
        self._without = dict[int, Source]()
        self._ready = list[tuple[int, Constraint | InvalidParameterError]]()
        self._finished = deque[tuple[Grammar, _Compiled]]()
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
                self._tokenizer = _read_vocabulary(self._token_bytes, self._vocab_size)

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

    def _bound(self, request: Unbound, compiled: _Compiled) -> Constraint | InvalidParameterError:
        source = self._without.pop(request.request_id, None)
        inner = self._follower(request, compiled)
        if source is None or isinstance(inner, InvalidParameterError):
            return inner
        return self._lacking(source, request, inner)

    def _follower(
        self, request: Unbound, compiled: _Compiled
    ) -> "Follower | InvalidParameterError":
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
            compiled = _compile(grammar, self._tokenizer)
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
        raise InvalidParameterError("grammar", _why(matcher.get_error()))


def _why(error: str) -> str:
    """What llguidance says, without the excerpt that it shows and without its state."""
    if error.startswith("NoExtension"):
        return "no text of it can be made with this vocabulary from here on"
    why = _EXCERPT.sub("", error).strip()
    return why if len(why) <= MAX_WHY else why[: MAX_WHY - 1] + "…"


class _Vocabulary:
    """What llguidance asks of a tokenizer."""

    is_tokenizer_wrapper = True
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, token_bytes: Sequence[bytes], vocab_size: int) -> None:
        tokens = list(token_bytes[:vocab_size])
        tokens += [b""] * (vocab_size - len(tokens))
        # An end of its own: the ids that end a request are its own affair.
        self.tokens = [*tokens, b"<end>"]
        self.eos_token_id = vocab_size
        self.tokenizer: llguidance.LLTokenizer | None = None

    def __call__(self, text: str) -> list[int]:
        """The ids of a text. Hardly ever asked for: see ``_OPTIONS``."""
        return [] if self.tokenizer is None else self.tokenizer.greedy_tokenize(text)


def _read_vocabulary(token_bytes: Sequence[bytes], vocab_size: int) -> "llguidance.LLTokenizer":
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("engine", "llguidance") from error
    vocabulary: Any = _Vocabulary(token_bytes, vocab_size)
    tokenizer = vocabulary.tokenizer = llguidance.LLTokenizer(vocabulary)
    return tokenizer


def _compile(grammar: Grammar, tokenizer: "llguidance.LLTokenizer") -> _Compiled:
    """A matcher at the beginning of a grammar, or what is wrong with the grammar."""
    import llguidance

    match grammar.kind:
        case "json_schema":
            try:
                schema = json.loads(grammar.source)
            except (ValueError, RecursionError) as error:
                return f"not a JSON schema: {error}"
            if isinstance(schema, dict):
                schema.setdefault("x-guidance", {"whitespace_pattern": WHITE_SPACE})
            source = f"start: %json {json.dumps(schema)}"
        case "regex":
            # in a grammar a regular expression stands between slashes
            regex = llguidance.regex_to_lark(grammar.source, "d")
            source = f"start: /(?:{regex})/"
        case _:
            source = grammar.source
    limits = llguidance.LLParserLimits(
        max_items_in_row=MAX_ITEMS_IN_ROW,
        initial_lexer_fuel=INITIAL_FUEL,
        step_lexer_fuel=STEP_FUEL,
        step_max_items=MAX_STEP_ITEMS,
        max_lexer_states=MAX_LEXER_STATES,
        max_grammar_size=MAX_SYMBOLS,
        verbose_errors=False,
    )
    matcher = llguidance.LLMatcher(tokenizer, source + _OPTIONS, log_level=0, limits=limits)
    if not matcher.is_error():
        # The first step is often the longest: most of what it works out is kept.
        matcher.compute_bitmask()
    if not matcher.is_error():
        return matcher
    why = _why(matcher.get_error())
    return why if grammar.kind == "lark" else why.removeprefix("at 1(8): ")
