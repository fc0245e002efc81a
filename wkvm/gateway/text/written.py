"""A prompt as it was written: its text, its special tokens, and how it goes on from what was read.

A state says what its model has read; a conversation that is written anew says what it is to have
read. Where the first is the beginning of the second, the rest is all that has to be computed. Both
are compared as bytes, in which a special token is one that nobody can spell.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.text.tokenizer import Tokenizer

_MARK = re.compile("\ufdd0([0-9]{1,9})\ufdd1")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class ReadMark:
    """How much a state has read, and what: enough to find out whether a text begins with it.

    Attributes:
        n_bytes: of the text; a special token counts as what ``read_bytes`` makes of it.
        digest: of these bytes.
    """

    n_bytes: int
    digest: bytes

    @staticmethod
    def of(read: bytes) -> "ReadMark":
        """The mark of what was read."""
        return ReadMark(len(read), hashlib.blake2b(read, digest_size=_DIGEST_BYTES).digest())

    def begins(self, read: bytes) -> bool:
        """Whether a text begins with what was read, and goes on."""
        if len(read) <= self.n_bytes:
            return False
        return ReadMark.of(read[: self.n_bytes]).digest == self.digest


class Written:
    """The text of a prompt. Immutable.

    Args:
        text: in which names of special tokens stand for these, and marks for what is hidden.
        plain: the texts that are hidden, by the number in their marks.
        borders: where in ``text`` messages end.
    """

    def __init__(
        self, text: str, plain: Sequence[str], tokenizer: Tokenizer, borders: Sequence[int] = ()
    ) -> None:
        self._text = text
        self._plain = plain
        self._tokenizer = tokenizer
        self._borders = borders

    def ids(self) -> list[int]:
        """The ids of all of it."""
        if not self._plain:
            return self._tokenizer.encode(self._text, special=True)
        return self._tokenizer.encode_runs(self._runs())

    def borders_in(self, ids: Sequence[int]) -> list[int]:
        """After how many of its ``ids`` messages end, as far as the ids tell: the last one before.

        Linear in the ids: some milliseconds for ten thousand.
        """
        if not self._borders:
            return []
        try:
            ends = list(accumulate(len(self._tokenizer.token_bytes(one)) for one in ids))
        except UnknownTokenError:
            return []
        parts = (self._show(self._text[:border]) for border in self._borders)
        found = {bisect_right(ends, len(part.encode("utf-8", "replace"))) for part in parts}
        return sorted(found - {0})

    def read_bytes(self) -> bytes:
        """What a model has read that was given all of it."""
        return b"".join(map(_run_bytes, self._runs()))

    def ids_after(self, n_bytes: int) -> list[int] | None:
        """The ids of what comes after so many of its ``read_bytes``.

        They are those with which ``ids`` ends, if a special token is before them. Text that goes
        on right where text was read is encoded by itself.

        Returns:
            None if it cannot be cut there: the ids would not have its text.
        """
        rest, at, last = list[str | int](), 0, None
        for run in self._runs():
            data = _run_bytes(run)
            end = at + len(data)
            if end <= n_bytes:
                last = run if data else last
            elif at >= n_bytes:
                rest.append(run)
            elif isinstance(run, int):
                return None
            else:
                rest.append(data[n_bytes - at :].decode("utf-8", "replace"))
                last = None
            at = end
        if isinstance(last, int) and not self._plain:
            # Some special tokens take the white space after them along: they have to be seen.
            names = self._tokenizer.specials
            text = "".join([names[run] if isinstance(run, int) else run for run in (last, *rest)])
            return self._tokenizer.encode(text, special=True)[1:]
        ids = self._tokenizer.encode_runs(rest)
        # Some tokenizers write a space before whatever they are given.
        read = read_by(ids, self._tokenizer)
        return ids if read == b"".join(map(_run_bytes, rest)) else None

    def _runs(self) -> list[str | int]:
        """Stretches of text, and the special tokens between them."""
        return [
            run if isinstance(run, int) else self._show(run)
            for run in self._tokenizer.split_specials(self._text)
        ]

    def _show(self, text: str) -> str:
        """Text with what is hidden in it."""

        def show(mark: re.Match[str]) -> str:
            number = int(mark[1])
            # One that nobody hid is the template's own.
            return self._plain[number] if number < len(self._plain) else mark.group()

        return _MARK.sub(show, text) if self._plain else text


def read_by(ids: Iterable[int], tokenizer: Tokenizer) -> bytes | None:
    """What a model has read that was given ids, or wrote them; as ``Written.read_bytes``.

    Returns:
        None if they are no text: there is an id that the tokenizer lacks, or half a character.
    """
    runs, plain = list[bytes](), list[bytes]()
    try:
        for token_id in (*ids, None):
            if token_id is None or token_id in tokenizer.special_ids:
                text = b"".join(plain)
                text.decode("utf-8")
                plain.clear()
                runs += [text] if token_id is None else [text, _run_bytes(token_id)]
            else:
                plain.append(tokenizer.token_bytes(token_id))
    except (UnknownTokenError, UnicodeDecodeError):
        return None
    return b"".join(runs)


def _run_bytes(run: str | int) -> bytes:
    """A stretch of text, or a special token as bytes that no text has."""
    if isinstance(run, int):
        return b"\xff%d\xff" % run
    try:
        return run.encode()
    except UnicodeEncodeError:  # lone surrogates, which tokenizers read as U+FFFD
        return run.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
