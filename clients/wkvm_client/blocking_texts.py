"""What the blocking client asks about texts that are given."""

from abc import ABC, abstractmethod
from collections.abc import Iterable

from wkvm_client.blocking_streams import Stream
from wkvm_client.drafts import Draft, embed_draft, score_draft
from wkvm_client.results import Path, Pooling, TokenLogprobs, embedding_of, scores_of


class Texts(ABC):
    """The part of a client that asks about texts."""

    def score(
        self,
        ids: Iterable[int],
        *,
        path: Path = "chunked",
        n_top: int = 0,
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> list[TokenLogprobs]:
        """Ask for the log probabilities of given ids, each after all that are before it.

        Arguments, result and errors are those of ``wkvm_client.aio.Client.score``.
        """
        request = score_draft(ids, path=path, n_top=n_top, timeout_s=timeout_s, priority=priority)
        return scores_of(self._open(request).completion(), timeout_s)

    def embed(
        self,
        ids: Iterable[int],
        *,
        pooling: Pooling = "last",
        timeout_s: float | None = None,
        priority: int = 0,
    ) -> list[float]:
        """Ask for the embedding of a text.

        Arguments, result and errors are those of ``wkvm_client.aio.Client.embed``.
        """
        request = embed_draft(ids, pooling=pooling, timeout_s=timeout_s, priority=priority)
        return embedding_of(self._open(request).completion(), timeout_s)

    @abstractmethod
    def _open(self, request: Draft) -> Stream:
        """Send a request on a connection that takes it."""
