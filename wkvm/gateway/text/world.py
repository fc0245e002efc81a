"""The vocabulary file of the RWKV World models, and encoding with it.

The file, ``rwkv_vocab_v20230424.txt``, is published with the RWKV models and inside the
``rwkv`` package; it is expected beside a model's weights. A line reads

    <id> <a Python literal, str or bytes> <length in bytes>

with ids from 1 on. The literal is read by ``ast.literal_eval``, which evaluates no code,
and only after a check that it is one quoted string.
"""

import ast
import re
from collections.abc import Mapping, Sequence

from wkvm.gateway.errors import CorruptTokenizerError

MAX_ID = 65535
MAX_LINE = 4096
"""Characters. The longest line of the published file has about 200."""

_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U[0-9a-f]{8})"
"""Those that Python's ``repr`` writes."""
_QUOTED = rf"'(?:[^'\\]|{_ESCAPE})*'|\"(?:[^\"\\]|{_ESCAPE})*\""
_LINE = re.compile(rf"(\d{{1,5}}) (b?)({_QUOTED}) (\d{{1,4}})")


class WorldVocabulary:
    """The tokens, by id, and greedy encoding: at each place the longest token that fits.

    Attributes:
        tokens: the bytes of each id; empty for id 0, None for an id that is not there.
    """

    def __init__(self, tokens: Mapping[int, bytes]) -> None:
        table: list[bytes | None] = [None] * (max(tokens) + 1)
        for token_id, token in tokens.items():
            table[token_id] = token
        table[0] = b""
        self.tokens: Sequence[bytes | None] = table
        self._ids = {token: token_id for token_id, token in tokens.items()}
        # In place of a trie: which lengths occur among the tokens that begin with these two
        # bytes, longest first. A trie of dicts would take 50 MB for the published file.
        lengths: dict[bytes, set[int]] = {}
        for token in self._ids:
            if len(token) > 1:
                lengths.setdefault(token[:2], set()).add(len(token))
        self._lengths = {start: sorted(found, reverse=True) for start, found in lengths.items()}

    def encode(self, data: bytes) -> list[int]:
        """Turn bytes into ids. Any bytes can be encoded. Cost: about a MB a second."""
        ids, known, lengths = list[int](), self._ids, self._lengths
        at, end = 0, len(data)
        while at < end:
            for length in lengths.get(data[at : at + 2], ()):
                token_id = known.get(data[at : at + length])
                if token_id is not None:
                    at += length
                    break
            else:
                token_id = known[data[at : at + 1]]
                at += 1
            ids.append(token_id)
        return ids


def read_world_vocabulary(text: str, path: str) -> WorldVocabulary:
    """Read a vocabulary file.

    Args:
        text: its content.
        path: for messages.

    Raises:
        CorruptTokenizerError: a line is malformed, a length is wrong, an id or a token is
            there twice, or one of the 256 bytes is not a token.
    """
    tokens: dict[int, bytes] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            token_id, token = _read_line(line)
        except ValueError as error:
            raise CorruptTokenizerError(path, f"line {number}: {error}") from error
        if token_id in tokens:
            raise CorruptTokenizerError(path, f"line {number}: id {token_id} again")
        tokens[token_id] = token
    present = set(tokens.values())
    if len(present) != len(tokens):
        raise CorruptTokenizerError(path, "two ids have the same bytes")
    missing = [byte for byte in range(256) if bytes((byte,)) not in present]
    if missing:
        raise CorruptTokenizerError(path, f"byte {missing[0]:#04x} is not among the tokens")
    return WorldVocabulary(tokens)


def _read_line(line: str) -> tuple[int, bytes]:
    if len(line) > MAX_LINE:
        raise ValueError(f"longer than {MAX_LINE} characters")
    found = _LINE.fullmatch(line)
    if found is None:
        raise ValueError("not an id, a quoted literal and a length")
    token_id, prefix, quoted, length = int(found[1]), found[2], found[3], int(found[4])
    if not 1 <= token_id <= MAX_ID:
        raise ValueError(f"id {token_id} is not in [1, {MAX_ID}]")
    token = _literal(prefix, quoted)
    if not token or len(token) != length:
        raise ValueError(f"the literal has {len(token)} bytes, the line says {length}")
    return token_id, token


def _literal(prefix: str, quoted: str) -> bytes:
    if "\\" not in quoted:
        return quoted[1:-1].encode("ascii" if prefix else "utf-8")
    try:
        value: object = ast.literal_eval(prefix + quoted)
    except (SyntaxError, MemoryError, RecursionError) as error:
        raise ValueError("not one literal") from error
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytes):
        return value
    raise ValueError("the literal is neither str nor bytes")
