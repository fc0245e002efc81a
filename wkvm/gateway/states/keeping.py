"""The state at the end of a request: where exactly that is, and what becomes of it unwatched."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace

from wkvm_client.aio import Client, Stream
from wkvm_client.errors import ClientError
from wkvm_client.states import StateEnd

from wkvm.gateway.failures import SERVER, HttpError
from wkvm.gateway.states.fields import Origin, StateFields, origin_of_file
from wkvm.gateway.streams.pieces import ChoiceText, Finish, TextOptions
from wkvm.gateway.texts import Texts

logger = logging.getLogger("wkvm.gateway")


class Unwatched:
    """Work that nobody waits for, as where a client has left. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks = set[asyncio.Task[None]]()

    def __len__(self) -> int:
        """How much of it there is."""
        return len(self._tasks)

    async def ended(self) -> None:
        """Wait until there is none."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def add(self, work: Coroutine[None, None, None]) -> None:
        """Go on with it, to its end or that of the connection to the engine."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def choice_text(
    stream: Stream, texts: Texts, options: TextOptions, fields: StateFields
) -> ChoiceText:
    """What reads the only choice of a stream."""

    def cut(n_kept: int) -> None:
        stream.interrupt(keep=n_kept)

    return ChoiceText(stream.choices[0], texts, options, cut=cut if fields.saves else None)


async def origin_of(client: Client, fields: StateFields, *, pins: bool) -> Origin:
    """Find out what a request goes on from.

    Args:
        fields: of the request.
        pins: let it go on from just that: ``state`` is given its version.

    Raises:
        ClientError: there is no such state.
        HttpError: 400; it is no name.
    """
    if fields.state is None:
        return origin_of_file(fields.inline() or b"")
    info = await client.states.get(fields.state)
    if pins:
        fields.state = info.ref
    return Origin(info.tail, info.n_tokens)


async def room_after(client: Client, origin: Origin, max_model_len: int | None) -> int | None:
    """How many tokens a prompt and its answer may have together; None for no limit.

    Of a model with attention layers, what the state has absorbed takes room as well. Only the
    engine's counters tell that from a limit on what comes after the state.

    Args:
        origin: what they come after.
        max_model_len: the limit on them, whatever they come after.

    Raises:
        ClientError: the engine could not be asked.
    """
    if max_model_len is None or not origin.n_tokens:
        return max_model_len
    most = (await client.stats()).get("most_request_tokens")
    return max_model_len if most is None else min(max_model_len, most - origin.n_tokens)


async def settled(client: Client, finish: Finish) -> StateEnd | None:
    """The state at the end of the text; waits, if a stop string came too late to end there.

    Raises:
        ClientError: it could not be taken back to there.
        HttpError: likewise.
    """
    end = finish.state
    if end is None or not finish.n_excess:
        return end
    if not end.name:
        why = "the answer was over before its stop string was found, and so is its state"
        raise HttpError(500, f"{why}; ask again with a greater max_tokens", SERVER)
    n_tokens = end.n_computed + len(end.pending) - finish.n_excess
    info = await client.states.rollback(end.name, position=n_tokens, expected_version=end.version)
    return replace(
        end,
        version=info.version,
        ack=info.ack,
        n_computed=info.n_computed,
        pending=tuple(info.tail[len(info.tail) - info.n_pending :]),
    )


class Keeper:
    """Sees to it that the state of a request ends where its text does.

    Args:
        client: of whoever asks.
        unwatched: where a request goes that is to finish without its client.
        cancellable: lets streams be cancelled by name; see ``Call.cancellable``.
        fields: of the request.
        streams, texts: of its choices.
    """

    def __init__(
        self,
        client: Client,
        unwatched: Unwatched,
        cancellable: Callable[[Stream], AbstractContextManager[None]],
        fields: StateFields,
        streams: Sequence[Stream],
        texts: Sequence[ChoiceText],
    ) -> None:
        self._client = client
        self._unwatched = unwatched
        self._cancellable = cancellable
        self._fields = fields
        self._streams = streams
        self._texts = texts

    def leave(self) -> None:
        """The client has left: do with what is not over as the request says."""
        for stream, text in zip(self._streams, self._texts, strict=True):
            if stream.is_over:
                continue
            match self._fields.on_disconnect:
                case "finish":
                    self._unwatched.add(self._finish(stream, text))
                case "hibernate":
                    stream.interrupt()
                case _:
                    stream.cancel()

    async def settle(self, finish: Finish) -> StateEnd | None:
        """See ``settled``."""
        return await settled(self._client, finish)

    async def _finish(self, stream: Stream, text: ChoiceText) -> None:
        """Read to the end what nobody waits for."""
        try:
            with self._cancellable(stream):
                while (piece := await text.read()).finish is None:
                    pass
            await self.settle(piece.finish)
        except (ClientError, HttpError) as error:
            logger.warning(
                "a request whose client had left was not finished: %s", type(error).__name__
            )
