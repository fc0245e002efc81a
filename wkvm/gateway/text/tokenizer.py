"""Text to ids and ids to bytes, for the kinds of tokenizer that checkpoints bring.

An id stands for bytes, not for characters: one character may be cut into several ids.
Turning a stream of ids into text is the business of ``wkvm.gateway.text``, finding and reading
their files that of ``wkvm.gateway.text.tokenizer_files``.
"""

import codecs
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import msgspec
import tokenizers

from wkvm.gateway.errors import (
    CorruptTokenizerError,
    UnknownTokenError,
    UnsupportedTokenizerError,
)
from wkvm.gateway.text.world import WorldVocabulary

_LONG_TEXT = 4096
"""Characters from which on other threads should not wait for a text to be encoded."""


class Tokenizer(ABC):
    """A vocabulary: text to ids, and each id to its bytes. Immutable and thread-safe.

    Attributes:
        digest: hex SHA-256 of the file it was read from; empty if there is none.
        specials: the special tokens, such as end of text: id to the text that names it.
    """

    digest: str
    specials: Mapping[int, str]

    @property
    @abstractmethod
    def vocab_size(self) -> int:
        """One more than the highest id. A model's vocabulary may be padded beyond this."""

    @abstractmethod
    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Turn text into ids. No token is added at either end.

        Args:
            text: any text; lone surrogates become U+FFFD.
            special: whether the names of special tokens in ``text`` stand for these tokens.
                Off for text of users, who could otherwise forge the end of a turn.
        """

    @abstractmethod
    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that an id stands for; for a special token, its name.

        Raises:
            UnknownTokenError: there is no such id.
        """

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of the special tokens."""
        return frozenset(self.specials)

    @cached_property
    def whole_texts(self) -> Mapping[int, str | None]:
        """By id, the text of its bytes where they are whole characters by themselves, else None.

        None too for ids that the tokenizer does not have, and for special tokens: whether these
        have a text is for their reader to say. Looking one up again costs no more than a dict.
        """
        return _WholeTexts(self)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Turn ids into text; bytes that are not UTF-8 become U+FFFD.

        Raises:
            UnknownTokenError: there is no such id.
        """
        skipped = self.special_ids if skip_special else frozenset[int]()
        parts = [self.token_bytes(token_id) for token_id in ids if token_id not in skipped]
        return b"".join(parts).decode("utf-8", errors="replace")

    def encode_runs(self, runs: Sequence[str | int]) -> list[int]:
        """Encode stretches of plain text between ids that are given already."""
        ids = list[int]()
        for run in runs:
            if isinstance(run, int):
                ids.append(run)
            elif run:
                ids += self.encode(run)
        return ids

    @cached_property
    def special_pattern(self) -> re.Pattern[str] | None:
        """What finds the name of a special token in text, the longest first; None without any."""
        names = sorted((name for name in self.specials.values() if name), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, names))) if names else None

    @cached_property
    def special_by_name(self) -> Mapping[str, int]:
        """The id of each special token that has a name."""
        return {name: token_id for token_id, name in self.specials.items() if name}

    def split_specials(self, text: str) -> list[str | int]:
        """Cut text at the names of special tokens, which become their ids."""
        if self.special_pattern is None:
            return [text]
        runs, at = list[str | int](), 0
        for found in self.special_pattern.finditer(text):
            runs += [text[at : found.start()], self.special_by_name[found.group()]]
            at = found.end()
        return [*runs, text[at:]]


class _WholeTexts(dict[int, "str | None"]):
    """Fills itself with the ids that are asked for."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__()
        self._tokenizer = tokenizer

    def __missing__(self, token_id: int) -> str | None:
        text = self[token_id] = self._text(token_id)
        return text

    def _text(self, token_id: int) -> str | None:
        if token_id in self._tokenizer.specials:
            return None
        try:
            token = self._tokenizer.token_bytes(token_id)
        except UnknownTokenError:
            return None
        decoder = new_utf8_decoder()
        text = decoder.decode(token)
        is_whole = not decoder.getstate()[0]
        return text if is_whole else None


class ByteTokenizer(Tokenizer):
    """An id is a byte."""

    def __init__(self, digest: str = "") -> None:
        self.digest = digest
        self.specials = {}

    @property
    def vocab_size(self) -> int:
        """Always 256."""
        return 256

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The bytes of ``text``. There are no special tokens."""
        return list(_utf8(text))

    def token_bytes(self, token_id: int) -> bytes:
        """The byte itself."""
        if not 0 <= token_id < 256:
            raise UnknownTokenError(token_id, 256)
        return bytes((token_id,))


class WorldTokenizer(Tokenizer):
    """The vocabulary of the RWKV World models: at each place the longest token that fits.

    Id 0 ends a document. It has no bytes and no name, so no text encodes to it.
    """

    def __init__(self, vocabulary: WorldVocabulary, digest: str) -> None:
        self.digest = digest
        self.specials = {0: ""}
        self._vocabulary = vocabulary

    @property
    def vocab_size(self) -> int:
        """65,530 for the vocabulary of the World models, whose heads are padded to 65,536."""
        return len(self._vocabulary.tokens)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Turn text into ids. No special token has a name, so ``special`` changes nothing."""
        return self._vocabulary.encode(_utf8(text))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of an id; none for id 0."""
        tokens = self._vocabulary.tokens
        token = tokens[token_id] if 0 <= token_id < len(tokens) else None
        if token is None:
            raise UnknownTokenError(token_id, len(tokens))
        return token


class HuggingFaceTokenizer(Tokenizer):
    """A ``tokenizer.json``, encoded by the ``tokenizers`` library, decoded by this class.

    The library's own decoding is not used: it turns ids into text, which loses the bytes
    of characters that are not complete yet.
    """

    def __init__(self, text: str, path: str, digest: str) -> None:
        self.digest = digest
        self._plain = _parse(text, path)
        self._plain.encode_special_tokens = True
        self._text = text
        self._path = path
        added = self._plain.get_added_tokens_decoder()
        self.specials = {i: token.content for i, token in added.items() if token.special}
        to_bytes = _bytes_of_pieces(msgspec.json.decode(text, type=_TokenizerFile), path)
        table: dict[int, bytes] = {}
        for piece, token_id in self._plain.get_vocab(with_added_tokens=True).items():
            table[token_id] = piece.encode() if token_id in added else to_bytes(piece)
        self._bytes = table
        self._vocab_size = max(table, default=-1) + 1

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return self._vocab_size

    @cached_property
    def _with_specials(self) -> tokenizers.Tokenizer:
        # A second instance, because the switch is a property of the instance and both kinds
        # of encoding may run in different threads.
        return _parse(self._text, self._path)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Turn text into ids. Cost: some MB a second.

        Raises:
            CorruptTokenizerError: the file leaves open what to do with a part of the text.
        """
        library = self._with_specials if special else self._plain
        with _as_corrupt(self._path, "cannot encode this text"):
            text = _utf8(text).decode()
            if len(text) < _LONG_TEXT:
                return library.encode(text, add_special_tokens=False).ids
            # The same ids; but only here the library lets other threads run meanwhile.
            [encoding] = library.encode_batch_fast([text], add_special_tokens=False)
            return encoding.ids

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of an id; the vocabulary may have holes."""
        try:
            return self._bytes[token_id]
        except KeyError:
            raise UnknownTokenError(token_id, self._vocab_size) from None


def new_utf8_decoder() -> codecs.IncrementalDecoder:
    """Bytes to characters as they come. Bytes that can become none are U+FFFD."""
    return codecs.getincrementaldecoder("utf-8")(errors="replace")


def _utf8(text: str) -> bytes:
    """UTF-8, with U+FFFD for lone surrogates, as JSON and argv may bring them."""
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


class _Decoder(msgspec.Struct):
    """A step of decoding in a ``tokenizer.json``; a sequence has further ones."""

    type: str = ""
    decoders: "list[_Decoder]" = []


class _TokenizerFile(msgspec.Struct):
    """What the library does not tell about a ``tokenizer.json``."""

    decoder: _Decoder | None = None


def _parse(text: str, path: str) -> tokenizers.Tokenizer:
    with _as_corrupt(path, "not a tokenizer"):
        library = tokenizers.Tokenizer.from_str(text)
        # Made for training: they would cut what the user wrote, or add to it.
        library.no_truncation()
        library.no_padding()
        return library


@contextmanager
def _as_corrupt(path: str, what: str) -> Generator[None]:
    """Turn whatever the library raises into an error about the file.

    It raises nothing more exact than Exception, and where it panics a BaseException.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise CorruptTokenizerError(path, f"{what}: {error}") from error


def _bytes_of_pieces(file: _TokenizerFile, path: str) -> Callable[[str], bytes]:
    """How the vocabulary spells bytes, from the decoder that the file names."""
    decoder = file.decoder or _Decoder()
    kinds = {step.type for step in decoder.decoders or [decoder]}
    if "ByteLevel" in kinds:
        return _ByteLevel()
    if kinds & {"ByteFallback", "Metaspace"}:
        return _SentencePiece()
    raise UnsupportedTokenizerError(
        path, f"decoder {decoder.type!r} is neither byte-level nor like SentencePiece's"
    )


class _ByteLevel:
    """GPT-2's spelling: each byte is a printable character.

    Bytes that are printable in Latin-1 stand for themselves; the others, in order, are
    the characters from U+0100 on.
    """

    def __init__(self) -> None:
        printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        others = [byte for byte in range(256) if byte not in set(printable)]
        self._byte_of = {chr(byte): byte for byte in printable}
        self._byte_of |= {chr(0x100 + n): byte for n, byte in enumerate(others)}

    def __call__(self, piece: str) -> bytes:
        try:
            return bytes(self._byte_of[character] for character in piece)
        except KeyError:
            return piece.encode()


class _SentencePiece:
    """SentencePiece's spelling: U+2581 is a space, ``<0x0A>`` is a byte."""

    _byte = re.compile(r"<0x([0-9A-Fa-f]{2})>")

    def __call__(self, piece: str) -> bytes:
        byte = self._byte.fullmatch(piece)
        return bytes((int(byte[1], 16),)) if byte else piece.replace("\u2581", " ").encode()
