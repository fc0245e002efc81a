"""One response: made, run and kept, for whoever sends its events. No HTTP here.

::

    asked = await ask(caller, body)             # what is wrong with the body is raised here
    async with Run(caller, asked) as run:       # the engine has taken it, and it is kept
        async for event in run:                 # dicts, from response.created to the last
            ...
    run.resource                                # the response as it is now

Leaving the block early, by an exception or a cancellation, cancels the response, and it is kept as
cancelled. ``run.cancel()`` ends it with a last event. A front with a memory of its own, such as a
WebSocket, gives ``local``: responses that are not stored are put there, with their states, and are
found there by ``ask``; ``forget`` removes these states.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, MutableMapping
from types import TracebackType
from typing import Any, Self

from wkvm_client import errors
from wkvm_client.aio import Stream
from wkvm_client.states import StateEnd

from wkvm.gateway.chat.replies import ChoiceReader, TokenLogprob, chat_logprobs
from wkvm.gateway.failures import (
    CANCELLED,
    DEFAULT_RETRY_AFTER_S,
    SERVER,
    HttpError,
    http_error,
)
from wkvm.gateway.responses import records
from wkvm.gateway.responses.asking import UNUSABLE, Asked, Caller, Local, ask, whole
from wkvm.gateway.responses.ends import extras, origin_of, usage_of
from wkvm.gateway.responses.foreign import calls_of
from wkvm.gateway.responses.items import Kept
from wkvm.gateway.responses.naming import LOCAL_TTL_S, TAG, forget, new_id
from wkvm.gateway.responses.records import Begun, Origin
from wkvm.gateway.responses.resource import Resource, begun, ended
from wkvm.gateway.responses.writer import Event, EventWriter
from wkvm.gateway.states.keeping import choice_text, settled
from wkvm.gateway.streams.choices import credit_for, taken
from wkvm.gateway.streams.pieces import ChoiceText, Finish, Piece

__all__ = ["Asked", "Caller", "Local", "Run", "ask", "forget", "new_id"]

logger = logging.getLogger("wkvm.gateway")


class Run:
    """A response that is being made. Enter it, then iterate over its events; once.

    Args:
        asked: what ``ask`` has returned.
        response_id: its name; None makes one.
        local: where a response goes that is not stored; None keeps nothing of it.
        shows_events: whether somebody sees them, as they come; otherwise they are few.

    Attributes:
        resource: the response as it is now.
        error: why it failed, once it has; its last event says so too.
    """

    def __init__(
        self,
        caller: Caller,
        asked: Asked,
        *,
        response_id: str | None = None,
        local: MutableMapping[str, Local] | None = None,
        shows_events: bool = True,
    ) -> None:
        self._caller = caller
        self._shows_events = shows_events
        self._asked = asked
        self._local = local
        self._shelf = caller.gateway.responses
        self.id = new_id(caller) if response_id is None else response_id
        self._begun = begun(asked.body, self.id, model=caller.gateway.model)
        self.resource: Resource = self._begun
        self.error: HttpError | None = None
        self._writer = EventWriter(calls_of(asked.body.tools))
        self._stream: Stream | None = None
        self._text: ChoiceText | None = None
        self._ids = list[int]()
        self._is_cancelled = False
        self._is_over = False
        self._unwatch = contextlib.ExitStack()
        self._tokenizer = caller.gateway.texts.tokenizer

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to come."""
        return self._is_over

    def cancel(self) -> None:
        """End it; what there is of it is told and kept."""
        self._is_cancelled = True
        if self._stream is not None:
            self._stream.cancel()

    async def __aenter__(self) -> Self:
        """Let the engine take it, and keep that it has begun.

        Raises:
            HttpError: it was refused, or there is no room to keep it; nothing is kept.
            ClientError: likewise.
        """
        self._shelf.begin(self.id, self)
        try:
            await self._open()
            if self._asked.body.stores:
                await self._keep_begun()
        except asyncio.CancelledError:
            # What the database has begun is not undone: it may be kept already.
            self._is_cancelled = True
            self._give_up()
            self._shelf.add(self._leave())
            raise
        except BaseException as error:
            self._give_up()
            self._shelf.end(self.id)
            if isinstance(error, errors.ClientError):
                raise self._failure(error) from error
            raise
        return self

    async def _open(self) -> None:
        """Ask the engine; what it refuses at once is raised."""
        try:
            await self._send()
        except UNUSABLE:
            if not self._asked.question.continues:
                raise
            await self._send_whole()

    async def _send(self) -> None:
        caller, question = self._caller, self._asked.question
        self._give_up()
        stream = await caller.client.generate(question.prompt, **self._keywords())
        self._stream = stream
        chat = self._asked.chat
        self._text = choice_text(stream, caller.gateway.texts, question.options, chat)
        self._unwatch.callback(caller.spend, stream)
        self._unwatch.enter_context(
            caller.gateway.running.joined(caller.tenant, caller.request_id, stream)
        )
        await taken(caller.client, stream)

    async def _send_whole(self) -> None:
        self._asked = await whole(self._caller, self._asked)
        await self._send()

    def _keywords(self) -> dict[str, Any]:
        asked, caller = self._asked, self._caller
        keywords = dict(asked.question.keywords)
        if asked.origin is not None:
            keywords["state"] = asked.origin.ref
        if not asked.generates:
            keywords["max_tokens"] = 0
        if "states" in caller.client.server.features and self._keeps_state:
            asked.chat.save_as = self.id
            is_local = not asked.body.stores
            keywords |= {
                "save_as": self.id,
                "expected_version": 0,
                "tags": TAG,
                "expires_in_s": LOCAL_TTL_S if is_local else self._shelf.limits.ttl_s,
            }
            if is_local:
                keywords["durability"] = "memory"
        keywords["credit"] = credit_for(keywords)
        return keywords

    @property
    def _keeps_state(self) -> bool:
        return self._asked.body.stores or self._local is not None

    def _give_up(self) -> None:
        if self._stream is not None:
            self._stream.cancel()
        self._unwatch.close()

    async def _keep_begun(self) -> None:
        asked, shelf, past = self._asked, self._shelf, self._asked.past
        is_kept = past.parent is not None or past.conversation is not None
        made_room = await shelf.database.run(
            records.begin,
            Begun(
                id=self.id,
                tenant=self._caller.tenant,
                resource=self.resource,
                # What only its connection remembers is kept with it: nobody else has it.
                items=asked.input if is_kept else [*past.items, *asked.input],
                parent=past.parent,
                conversation=past.conversation,
                revision=past.revision,
                key=asked.key,
            ),
            shelf.limits,
        )
        if made_room:
            shelf.add(forget(self._caller, made_room))

    def __aiter__(self) -> AsyncGenerator[Event]:
        """Its events, from the first."""
        return self._events()

    async def _events(self) -> AsyncGenerator[Event]:
        writer, body = self._writer, self._asked.body
        yield writer.about("response.created", self.resource)
        if body.background:
            yield writer.about("response.queued", self.resource)
            self.resource = {**self.resource, "status": "in_progress"}
        yield writer.about("response.in_progress", self.resource)
        reader = self._reader()
        try:
            piece = await self._first()
            while True:
                for event in self._told(reader, piece):
                    yield event
                if piece.finish is not None:
                    break
                piece = await self._next()
            end = await settled(self._caller.client, piece.finish)
        except (errors.ClientError, HttpError) as error:
            for event in await self._failed(error):
                yield event
            return
        for event in await self._ended(piece.finish, end):
            yield event

    def _reader(self) -> ChoiceReader:
        question = self._asked.question
        return ChoiceReader(question.answer(), drops_space=question.drops_space)

    async def _first(self) -> Piece:
        """The first piece. A state that cannot be read is no obstacle until then."""
        assert self._text is not None
        try:
            return await self._text.read()
        except UNUSABLE:
            if not self._asked.question.continues:
                raise
            logger.warning("the state of a response cannot be used: its text is read anew")
            await self._send_whole()
            return await self._text.read()

    async def _next(self) -> Piece:
        """The next piece: with as many ids as an event is to have, if nothing ends before."""
        assert self._text is not None
        piece = await self._text.read()
        while piece.finish is None and len(piece.ids) < self._interval:
            try:
                piece = piece.then(await self._text.read())
            except (errors.ClientError, HttpError):
                break  # what came is told; the next reading raises it again
        return piece

    @property
    def _interval(self) -> int:
        if not self._shows_events:
            return 2**31
        return self._asked.body.stream_interval or self._caller.gateway.config.stream_interval

    def _told(self, reader: ChoiceReader, piece: Piece) -> list[Event]:
        self._ids += piece.ids
        found = reader.events(piece.text, piece.finish)
        return self._writer.read(found, self._logprobs(piece))

    def _logprobs(self, piece: Piece) -> list[TokenLogprob]:
        if not self._asked.body.has_logprobs:
            return []
        as_ids = bool(self._asked.body.return_tokens_as_token_ids)
        return chat_logprobs(self._tokenizer, piece.logprobs, as_ids=as_ids).content

    async def _ended(self, finish: Finish, end: StateEnd | None) -> list[Event]:
        """Keep how it ended; the last events."""
        is_whole = finish.reason == "stop" or not self._asked.generates
        events = self._writer.end(is_whole=is_whole) if self._asked.generates else []
        origin = origin_of(self._asked, self._ids, end, self._tokenizer)
        assert self._text is not None
        final = ended(
            self.resource | extras(self._asked, self._text, self._ids),
            "completed" if is_whole else "incomplete",
            self._writer.output,
            usage=usage_of(self._asked, finish, self._writer.output, self._tokenizer),
            reason=None if is_whole else "max_output_tokens",
            state=end,
        )
        try:
            await self._keep_end(final, origin)
        except HttpError as error:
            return [*events, *await self._failed(error)]
        return [*events, self._last("completed" if is_whole else "incomplete")]

    async def _keep_end(self, final: Resource, origin: Origin | None) -> None:
        """Keep it, as far as it is to be kept. It is over then, whatever is raised.

        Raises:
            HttpError: it could not be kept, and neither is its state.
        """
        self._unwatch.close()
        asked, caller = self._asked, self._caller
        try:
            if asked.body.stores:
                is_wanted = await self._shelf.database.run(records.finish, self.id, final, origin)
                if not is_wanted:
                    await forget(caller, [self.id])
            elif self._local is not None and final["status"] in ("completed", "incomplete"):
                items: list[Kept] = [*asked.past.items, *asked.input, *final["output"]]
                self._local[self.id] = Local(items, origin)
        except HttpError:
            await forget(caller, [self.id])
            raise
        finally:
            self._over(final)

    def _over(self, final: Resource) -> None:
        self.resource = final
        self._is_over = True
        self._shelf.end(self.id)

    async def _failed(self, error: Exception) -> list[Event]:
        """Keep that it failed, or was cancelled; the last events."""
        known = self._failure(error)
        is_cancelled = known.code == CANCELLED
        self.error = None if is_cancelled and self._is_cancelled else known
        was_over = self._is_over
        events = [] if was_over else self._writer.end(is_whole=False)
        final = ended(
            self._begun,
            "cancelled" if is_cancelled else "failed",
            [] if known.status == 507 else self._writer.output,  # nothing half is kept
            error=None if is_cancelled else known,
        )
        if was_over:  # its end could not be kept
            self._over(final)
        else:
            with contextlib.suppress(HttpError):
                await self._keep_end(final, None)
        if isinstance(error, errors.QuotaError) and self._asked.body.stores:
            self._shelf.add(self._make_room())
        return [*events, self._last("incomplete" if is_cancelled else "failed")]

    async def _make_room(self) -> None:
        """Let the next one find room for its state."""
        with contextlib.suppress(HttpError):
            given_up = await self._shelf.database.run(records.give_up_states, self._caller.tenant)
            await forget(self._caller, given_up)

    def _last(self, kind: str) -> Event:
        return self._writer.about(f"response.{kind}", self.resource)

    def _failure(self, error: Exception) -> HttpError:
        """The error for whoever asked."""
        known = http_error(error, self._asked.question.names)
        assert known is not None, "only errors with a row in the table come here"
        if known.code == CANCELLED and self._caller.gateway.is_draining:
            why = "the server is draining, and the response was not over in time"
            return HttpError(503, why, SERVER, code="draining", retry_after_s=DEFAULT_RETRY_AFTER_S)
        return known

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._is_over:
            return
        # Whoever read it is gone, and may be cancelled: what is left goes on by itself.
        self._is_cancelled = True
        self._give_up()
        self._shelf.add(self._leave())

    async def _leave(self) -> None:
        """Keep that it was cancelled."""
        self._writer.end(is_whole=False)
        final = ended(self._begun, "cancelled", self._writer.output)
        if self._keeps_state:
            if self._stream is not None:
                # It may have ended just before, and its state be on its way.
                with contextlib.suppress(errors.ClientError):
                    await self._stream.choices[0].completion()
            await forget(self._caller, [self.id])
        try:
            await self._keep_end(final, None)
        except HttpError as error:
            logger.warning(
                "a response whose client had left was not kept: %s", type(error).__name__
            )
