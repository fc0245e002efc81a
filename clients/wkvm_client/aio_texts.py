"""What the asyncio client asks about texts that are given."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from wkvm_client.aio_streams import Stream
from wkvm_client.drafts import Draft, embed_draft, score_draft
from wkvm_client.results import Path, Pooling, TokenLogprobs, embedding_of, scores_of


class Texts(ABC):
    """The part of a client that asks about texts."""

    async def score(
        self,
        ids: Iterable[int],
        *,
        path: Path = "chunked",
        n_top: int = 0,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> list[TokenLogprobs]:
        """Ask for the log probabilities of given ids, each after all that are before it.

        Args:
            ids: a text, at least one id.
            path: ``chunked`` absorbs it as prompts are absorbed and as trainers do it;
                ``decode`` id by id, as if it had been generated. Both are the model's; what
                they differ by is rounding.
            n_top: report this many most likely ids too, at each position.
            timeout_s, priority: as of ``generate``.

        Returns:
            One entry for each id but the first, which nothing precedes.

        Raises:
            RequestError: the request cannot be carried out.
            UnsupportedOperationError: the server does not score texts.
            LinkError: there is no connection, none was to be had, or it was lost.
            RequestTimeoutError: it took longer than ``timeout_s``.
            TooManyLanesError: as many lanes are open as the connection may have.
        """
        request = score_draft(ids, path=path, n_top=n_top, timeout_s=timeout_s, priority=priority)
        stream = await self._open(request)
        return scores_of(await stream.completion(), timeout_s)

    async def embed(
        self,
        ids: Iterable[int],
        *,
        pooling: Pooling = "last",
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> list[float]:
        """Ask for the embedding of a text, as the model gave it: of no particular length.

        Args:
            ids: the text, at least one id.
            pooling: ``last`` is the hidden state of the last id, after the final norm; ``mean``
                the mean of those of all ids; ``state`` what the state at the end has in its last
                recurrent layer, its matrices averaged over their keys.
            timeout_s, priority: as of ``generate``.

        Returns:
            As many numbers as the model is wide; of ``state``, as its last recurrent layer has
            values. It costs as much as a prompt of so many ids.

        Raises:
            RequestError: the request cannot be carried out.
            UnsupportedOperationError: the server makes no embeddings.
            LinkError: there is no connection, none was to be had, or it was lost.
            RequestTimeoutError: it took longer than ``timeout_s``.
            TooManyLanesError: as many lanes are open as the connection may have.
        """
        request = embed_draft(ids, pooling=pooling, timeout_s=timeout_s, priority=priority)
        stream = await self._open(request)
        return embedding_of(await stream.completion(), timeout_s)

    @abstractmethod
    async def _open(self, request: Draft) -> Stream:
        """Send a request on a connection that takes it."""
