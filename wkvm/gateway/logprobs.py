"""Log probabilities as completions report them: ids as texts, and where in the text they are."""

from collections.abc import Sequence

from wkvm_client import TokenLogprobs

from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.replies import CompletionLogprobs, TokenInfo
from wkvm.gateway.text import IncrementalDecoder, Tokenizer

LOWEST = -9999.0
"""Stands for a probability of 0: JSON has no infinity."""


def token_text(tokenizer: Tokenizer, token_id: int, *, as_id: bool = False) -> str:
    r"""What an id is called: its text; where that is no whole characters, ``bytes:\xe2\x80``.

    Args:
        as_id: call it ``token_id:N`` instead, which no other id is called.
    """
    if not as_id:
        try:
            return _text_of_bytes(tokenizer.token_bytes(token_id))
        except UnknownTokenError:
            # A model's vocabulary may be padded beyond the tokenizer's.
            pass
    return f"token_id:{token_id}"


def finite(logprob: float) -> float:
    """A log probability that JSON can hold."""
    return logprob if logprob >= LOWEST else LOWEST


def _text_of_bytes(token: bytes) -> str:
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join([f"\\x{byte:02x}" for byte in token])


class LogprobsWriter:
    """Writes the log probabilities of one choice in OpenAI's legacy format.

    Offsets go on from one call to the next, so what is written does not depend on how the ids
    were cut.

    Args:
        n_top: how many of the most likely ids are named besides the id itself.
        as_ids: call ids ``token_id:N``.
        skip_special: whether special tokens of the output have no text.
    """

    def __init__(
        self, tokenizer: Tokenizer, n_top: int, *, as_ids: bool, skip_special: bool
    ) -> None:
        self._tokenizer = tokenizer
        self._n_top = n_top
        self._as_ids = as_ids
        self._decoder = IncrementalDecoder(tokenizer, skip_special=skip_special)
        self._offset = 0

    def prompt(self, ids: Sequence[int], entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Those of a prompt that the text begins with.

        Args:
            ids: all of them.
            entries: one for each but the first.
        """
        written = CompletionLogprobs([], [], [], [])
        # The text that is echoed has special tokens by name.
        decoder = IncrementalDecoder(self._tokenizer, skip_special=False)
        written.tokens.append(self._name(ids[0]))
        written.token_logprobs.append(None)
        written.top_logprobs.append(None)
        written.text_offset.append(self._offset)
        self._offset += len(decoder.feed(ids[:1]))
        self._write(entries, decoder, written)
        self._offset += len(decoder.flush())
        return written

    def output(self, entries: Sequence[TokenLogprobs]) -> CompletionLogprobs:
        """Those of further ids of the output."""
        written = CompletionLogprobs([], [], [], [])
        self._write(entries, self._decoder, written)
        return written

    def _write(
        self,
        entries: Sequence[TokenLogprobs],
        decoder: IncrementalDecoder,
        written: CompletionLogprobs,
    ) -> None:
        for entry in entries:
            logprob = finite(entry.logprob)
            name = self._name(entry.token_id)
            top = {name: logprob}
            for other in entry.top[: self._n_top]:
                # Several ids may have one text; the most likely of them counts.
                other_name, other_logprob = self._name(other.token_id), finite(other.logprob)
                if other_logprob >= top.get(other_name, other_logprob):
                    top[other_name] = other_logprob
            written.tokens.append(name)
            written.token_logprobs.append(logprob)
            written.top_logprobs.append(top)
            text = decoder.feed((entry.token_id,))
            # What earlier ids have cut off comes before the text of one that is whole characters.
            own = token_text(self._tokenizer, entry.token_id)
            n_before = len(text) - len(own) if text.endswith(own) else 0
            written.text_offset.append(self._offset + n_before)
            self._offset += len(text)

    def _name(self, token_id: int) -> str:
        return token_text(self._tokenizer, token_id, as_id=self._as_ids)


def joined(first: CompletionLogprobs, second: CompletionLogprobs) -> CompletionLogprobs:
    """Two stretches as one."""
    return CompletionLogprobs(
        first.tokens + second.tokens,
        first.token_logprobs + second.token_logprobs,
        first.top_logprobs + second.top_logprobs,
        first.text_offset + second.text_offset,
    )


def prompt_infos(
    tokenizer: Tokenizer, entries: Sequence[TokenLogprobs], n_top: int
) -> list[dict[str, TokenInfo] | None]:
    """The ``prompt_logprobs`` of vLLM: by position, for the most likely ids and the one there."""
    infos: list[dict[str, TokenInfo] | None] = [None]
    for entry in entries:
        ranked = [(entry.token_id, entry.logprob, entry.rank)]
        ranked += [(top.token_id, top.logprob, n + 1) for n, top in enumerate(entry.top[:n_top])]
        infos.append(
            {
                str(token_id): TokenInfo(finite(logprob), rank, token_text(tokenizer, token_id))
                for token_id, logprob, rank in reversed(ranked)
            }
        )
    return infos
