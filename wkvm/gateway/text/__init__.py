"""Ids to text as they come: complete characters only, and nothing beyond a stop string.

Also the door to the rest of the text layer: tokenizers and chat templates.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wkvm.gateway.errors import (
    CorruptTokenizerError,
    TemplateError,
    TextError,
    TokenizerError,
    TokenizerNotFoundError,
    UnknownTokenError,
    UnsupportedTokenizerError,
)
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.template_files import load_chat_template
from wkvm.gateway.text.tokenizer import ByteTokenizer, Tokenizer, new_utf8_decoder
from wkvm.gateway.text.tokenizer_files import find_tokenizer, load_tokenizer, tokenizer_digest

__all__ = [
    "ByteTokenizer",
    "ChatTemplate",
    "CorruptTokenizerError",
    "IncrementalDecoder",
    "StopStrings",
    "StopText",
    "TemplateError",
    "TextError",
    "TextStream",
    "Tokenizer",
    "TokenizerError",
    "TokenizerNotFoundError",
    "UnknownTokenError",
    "UnsupportedTokenizerError",
    "find_tokenizer",
    "load_chat_template",
    "load_tokenizer",
    "tokenizer_digest",
]


class IncrementalDecoder:
    """Turn a stream of ids into text, holding back what may still become a character.

    All returned texts in order equal ``tokenizer.decode`` of all ids, however they are cut.

    Args:
        skip_special: whether special tokens have no text, but those in ``shown``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special: bool = True,
        shown: frozenset[int] = frozenset(),
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = tokenizer.special_ids - shown if skip_special else frozenset[int]()
        self._utf8 = new_utf8_decoder()
        self._is_between = True
        self._whole_texts = tokenizer.whole_texts

    @property
    def is_between(self) -> bool:
        """Whether nothing is held back."""
        return self._is_between

    def feed(self, ids: Sequence[int]) -> str:
        """Take ids; return the characters that are complete now.

        Bytes that no continuation can make valid are U+FFFD. An id that the tokenizer does not
        have has no text: a model's vocabulary may be padded.
        """
        if self._is_between and len(ids) == 1:
            # Nearly every step of nearly every stream: one id, which is whole characters.
            whole = self._whole_texts[ids[0]]
            if whole is not None:
                return whole
        text = self._utf8.decode(b"".join([self._bytes(token_id) for token_id in ids]))
        self._is_between = not self._utf8.getstate()[0]
        return text

    def breaks_off(self, token_id: int) -> bool:
        """Whether an id would make one U+FFFD of what is held back, and of nothing of its own."""
        first = self._bytes(token_id)[:1]
        return not self._is_between and bool(first) and not 0x80 <= first[0] < 0xC0

    def _bytes(self, token_id: int) -> bytes:
        if token_id in self._skipped:
            return b""
        try:
            return self._tokenizer.token_bytes(token_id)
        except UnknownTokenError:
            return b""

    def flush(self) -> str:
        """End the stream: what is held back becomes U+FFFD. Then it can be used anew."""
        self._is_between = True
        return self._utf8.decode(b"", final=True)


@dataclass(frozen=True, slots=True)
class StopText:
    """What ``StopStrings.feed`` returns.

    Attributes:
        text: safe to show: it holds no stop and no beginning of one.
        stop: the stop that was found right after ``text``, or None.
    """

    text: str
    stop: str | None = None


class StopStrings:
    """Find the first of several stops in a stream of text.

    The stop that is complete first wins; of two complete at the same place, the longer
    one. So the result does not depend on how the text is cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop must not be empty")
        self._stops = tuple(sorted(set(stops), key=len, reverse=True))
        self._firsts = frozenset(stop[0] for stop in self._stops)
        self._held = ""

    def feed(self, text: str) -> StopText:
        """Take text; return what certainly comes before any stop.

        After a stop was found, feed nothing more.
        """
        if not self._held and self._firsts.isdisjoint(text):
            # Most text of most requests: nothing in it begins a stop.
            return StopText(text)
        pending = self._held + text
        found = [(at + len(s), at, s) for s in self._stops if (at := pending.find(s)) >= 0]
        if found:
            self._held = ""
            _, at, stop = min(found)
            return StopText(pending[:at], stop)
        keep = self._longest_beginning(pending)
        self._held = pending[len(pending) - keep :]
        return StopText(pending[: len(pending) - keep])

    def flush(self) -> str:
        """End the stream without a stop: return what is held back."""
        held, self._held = self._held, ""
        return held

    def _longest_beginning(self, text: str) -> int:
        """Characters at the end of ``text`` that begin a stop without completing it."""
        longest = min(len(text), len(self._stops[0]) - 1)
        for start in range(len(text) - longest, len(text)):
            if text[start] in self._firsts:
                tail = text[start:]
                for stop in self._stops:
                    if stop.startswith(tail):
                        return len(tail)
        return 0


class TextStream:
    """Ids to text up to a stop string: a decoder and a matcher in a row.

    Args:
        min_tokens: stop strings are not looked for in the text of this many first ids.
    """

    def __init__(
        self, tokenizer: Tokenizer, stops: Sequence[str] = (), *, min_tokens: int = 0
    ) -> None:
        self._decoder = IncrementalDecoder(tokenizer)
        self._matcher = StopStrings(stops)
        self._n_free = min_tokens
        self.stop: str | None = None

    def feed(self, ids: Sequence[int]) -> StopText:
        """Take ids; return the text that is complete and certainly before any stop.

        After a stop was found, ids are ignored.
        """
        if self.stop is not None:
            return StopText("")
        free, ids = ids[: self._n_free], ids[self._n_free :]
        self._n_free -= len(free)
        text = self._decoder.feed(free)
        found = self._match(self._decoder.feed(ids))
        return StopText(text + found.text, found.stop)

    def flush(self) -> StopText:
        """End the stream: return what was held back; it may still complete a stop."""
        if self.stop is not None:
            return StopText("")
        last = self._match(self._decoder.flush())
        return last if last.stop is not None else StopText(last.text + self._matcher.flush())

    def _match(self, text: str) -> StopText:
        found = self._matcher.feed(text)
        self.stop = found.stop
        return found
