"""What is known of llguidance: how a grammar, and a vocabulary, is told to it, and its limits.

It is imported when the first grammar comes, or a compiler is prepared.
"""

import importlib.util
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from wkvm.core.errors import MissingExtraError
from wkvm.core.grammar import Grammar

if TYPE_CHECKING:
    import llguidance

Compiled: TypeAlias = "llguidance.LLMatcher | str"
"""A matcher at the beginning of a grammar, or what is wrong with the grammar."""

MAX_ITEMS_IN_ROW = 600
MAX_STEP_ITEMS = 10_000
INITIAL_FUEL = 500_000
STEP_FUEL = 100_000
MAX_LEXER_STATES = 20_000
MAX_SYMBOLS = 100_000
"""What a grammar may cost, in llguidance's terms. It keeps a step of the worst one at about
0.1 s and its compilation at a few seconds; those that people write stay far below."""

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


def why_of(error: str) -> str:
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


def read_vocabulary(token_bytes: Sequence[bytes], vocab_size: int) -> "llguidance.LLTokenizer":
    """The vocabulary as llguidance has it. See ``GrammarCompiler`` and its ``prepare``."""
    try:
        import llguidance
    except ImportError as error:
        raise MissingExtraError("engine", "llguidance") from error
    vocabulary: Any = _Vocabulary(token_bytes, vocab_size)
    tokenizer = vocabulary.tokenizer = llguidance.LLTokenizer(vocabulary)
    return tokenizer


def compiled_of(grammar: Grammar, tokenizer: "llguidance.LLTokenizer") -> Compiled:
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
    why = why_of(matcher.get_error())
    return why if grammar.kind == "lark" else why.removeprefix("at 1(8): ")
