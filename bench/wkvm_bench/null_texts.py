"""The text side of a null engine: every id is a number that can be read, and so checked.

A null engine counts up from the last id of a prompt, which is the number of the last character of
the chat's last message: each stream can be told from the others.
"""

from wkvm.gateway.text.template import WORLD_TEMPLATE, ChatTemplate
from wkvm.gateway.text.tokenizer import Tokenizer
from wkvm.gateway.texts import Texts
from wkvm_bench.null_engine import VOCAB_SIZE


class NumberTokenizer(Tokenizer):
    """An id stands for a space and its own number. A character becomes the id of its number."""

    def __init__(self) -> None:
        self.digest = ""
        self.specials = {}
        self._bytes = [b" %d" % token_id for token_id in range(VOCAB_SIZE)]

    @property
    def vocab_size(self) -> int:
        """That of the null engine."""
        return VOCAB_SIZE

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The numbers of the characters of ``text``."""
        del special
        return [ord(character) % VOCAB_SIZE for character in text]

    def token_bytes(self, token_id: int) -> bytes:
        """The number, in decimal."""
        return self._bytes[token_id]


def null_texts() -> Texts:
    """Numbers, a chat template of ordinary size, and no stops."""
    template = WORLD_TEMPLATE + "{{ messages[-1]['content'] }}"
    return Texts(NumberTokenizer(), ChatTemplate(template))


def expected_text(prompt: str, n_ids: int) -> str:
    """What comes of a chat that ends with ``prompt``."""
    first = ord(prompt[-1]) + 1
    return "".join(f" {token_id % VOCAB_SIZE}" for token_id in range(first, first + n_ids))
