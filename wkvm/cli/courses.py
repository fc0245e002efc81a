"""How a chat goes on: all of it is sent each time, or its new message alone, to a session.

A session is a state of the server, as over HTTP: each turn commits a version of it.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

from wkvm_client.aio import Client, Stream
from wkvm_client.errors import StateNotFoundError
from wkvm_client.states import StateInfo

from wkvm.assembly.backend import Backend
from wkvm.cli.complete import cut_short, follow
from wkvm.cli.place import Setting, note
from wkvm.core.errors import ConfigError
from wkvm.gateway.failures import CANCELLED, HttpError
from wkvm.gateway.states.keeping import settled
from wkvm.gateway.streams.pieces import ChoiceText, TextOptions
from wkvm.gateway.text import TextStream
from wkvm.gateway.texts import Texts

T = TypeVar("T")

Message: TypeAlias = dict[str, str]


class ChatError(Exception):
    """What the user wants cannot be done. The chat goes on."""


class Course(Protocol):
    """Where the conversation is, besides in this process."""

    @property
    def is_kept(self) -> bool:
        """Whether the server keeps it."""
        ...

    @property
    def takes_system(self) -> bool:
        """Whether a system message can still be set."""
        ...

    def answer(
        self, history: Sequence[Message], options: Mapping[str, Any], put: Callable[[str], None]
    ) -> str | None:
        """Get an answer to the last message, and hand its text over as it comes.

        Ctrl-C ends it; what came until then counts.

        Returns:
            Why it was cut short, if it was.

        Raises:
            ChatError, TextError, ClientError: there is no answer, and nothing has changed.
        """
        ...

    def back(self) -> None:
        """Take the last answer back, and the message before it.

        Raises:
            ChatError, ClientError: that cannot be.
        """
        ...


class Whole:
    """All messages are sent each time, after a state of the server if there is one to begin at."""

    is_kept = False
    takes_system = True

    def __init__(self, setting: Setting, start: StateInfo | None) -> None:
        self._setting = setting
        self._start = start

    def answer(
        self, history: Sequence[Message], options: Mapping[str, Any], put: Callable[[str], None]
    ) -> str | None:
        """See ``Course.answer``."""
        setting, start = self._setting, self._start
        after = () if start is None else start.tail
        prompt = setting.template.encode(history, setting.tokenizer, after=after)
        state = "" if start is None else start.ref
        answer = setting.backend.generate(prompt, **options, state=state)
        min_tokens = options.get("min_tokens", 0)
        stream = TextStream(setting.tokenizer, setting.template.stops, min_tokens=min_tokens)
        completion, was_interrupted = follow(answer, stream, put)
        if was_interrupted:
            return "cancelled"
        return None if stream.stop is not None else cut_short(completion)

    def back(self) -> None:
        """Nothing is kept."""


class Session:
    """A state that each turn goes on from and commits a version of.

    Args:
        name: of the state; it is made by the first turn if there is none.
        start: what a session that is made begins at.

    Raises:
        ConfigError: there is one, and it cannot begin at ``start``.
        ClientError: the server has no states.
    """

    is_kept = True

    def __init__(self, setting: Setting, name: str, start: StateInfo | None) -> None:
        self._setting = setting
        self._name = name
        self._start = start
        self._head = found(setting.backend, name)
        self._before = list[StateInfo | None]()
        if self._head is None:
            note(f"session {name} is new")
        elif start is not None:
            raise ConfigError("state", f"session {name} has begun; without --state it goes on")
        else:
            note(f"session {name} goes on at {self._head.ref}, {self._head.n_tokens} tokens")

    @property
    def takes_system(self) -> bool:
        """Before the first turn of a new session."""
        return self._head is None

    def answer(
        self, history: Sequence[Message], options: Mapping[str, Any], put: Callable[[str], None]
    ) -> str | None:
        """See ``Course.answer``."""
        setting, head = self._setting, self._head
        start = self._start if head is None else head
        # The session has what was said before; what it has of a system message it has from then.
        new = [one for one in history if one["role"] == "system"] if head is None else []
        after = () if start is None else start.tail
        prompt = setting.template.encode([*new, history[-1]], setting.tokenizer, after=after)
        kept = {
            "state": "" if start is None else start.ref,
            "save_as": self._name,
            "expected_version": 0 if head is None else head.version,
        }
        answer = KeptAnswer(setting, prompt, {**options, **kept})
        was_interrupted = False
        pieces = iter(answer)
        while True:
            try:
                for text in pieces:
                    put(text)
                break
            except KeyboardInterrupt:
                was_interrupted = True
                answer.interrupt()
        self._before.append(head)
        self._head = found(setting.backend, self._name)
        return "cancelled" if was_interrupted else None

    def back(self) -> None:
        """See ``Course.back``: the session is as it was before, in a new version."""
        if not self._before:
            raise ChatError("what was said before this chat is undone by wkvm states rollback")
        before, head, name = self._before[-1], self._head, self._name
        if head is None:
            raise ChatError(f"session {name} is gone")

        async def take(client: Client) -> StateInfo | None:
            if before is None:
                await client.states.delete(name, expected_version=head.version)
                return None
            return await client.states.rollback(
                name, version=before.version, expected_version=head.version
            )

        self._head = self._setting.backend.run(take).result()
        self._before.pop()


class KeptAnswer:
    """An answer whose state is kept, and ends where its text does. For the main thread."""

    def __init__(self, setting: Setting, prompt: list[int], options: dict[str, Any]) -> None:
        self._backend = setting.backend
        self._texts = Texts(setting.tokenizer, setting.template)
        self._arrivals = SimpleQueue[str | BaseException | None]()
        self._stream: Stream | None = None
        self._is_interrupted = False
        self._backend.run(lambda client: self._produce(client, prompt, options))

    def __iter__(self) -> Iterator[str]:
        """Go through the text as it comes, to its end. May be begun again where it was left.

        Raises:
            ChatError, TextError, ClientError: the answer failed, and nothing is kept.
        """
        return self

    def __next__(self) -> str:
        match self._arrivals.get():
            case None:
                raise StopIteration
            case HttpError() as error:
                raise ChatError(str(error)) from error
            case BaseException() as error:
                raise error
            case text:
                return text

    def interrupt(self) -> None:
        """End it. What there is of it is kept."""

        async def end(_: Client) -> None:
            self._is_interrupted = True
            if self._stream is not None:
                self._stream.interrupt()

        self._backend.run(end)

    async def _produce(self, client: Client, prompt: list[int], options: dict[str, Any]) -> None:
        try:
            self._stream = stream = await client.generate(prompt, **options)
            if self._is_interrupted:
                stream.interrupt()
            template = self._texts.template
            shape = TextOptions(stops=template.stops, min_tokens=options.get("min_tokens", 0))
            text = ChoiceText(
                stream.choices[0],
                self._texts,
                shape,
                cut=lambda n_kept: stream.interrupt(keep=n_kept),
            )
            try:
                piece = await text.read()
                while piece.finish is None:
                    self._arrivals.put(piece.text)
                    piece = await text.read()
                self._arrivals.put(piece.text)
                await settled(client, piece.finish)
            except HttpError as error:
                end = stream.choices[0].result.state if error.code == CANCELLED else None
                if end is None or not end.name:
                    raise
            self._arrivals.put(None)
        except BaseException as error:  # noqa: BLE001  it is raised in the main thread
            self._arrivals.put(error)


def found(backend: Backend, ref: str) -> StateInfo | None:
    """A state of the server; None if there is none.

    Raises:
        ClientError: another reason not to have it.
    """

    async def get(client: Client) -> StateInfo | None:
        try:
            return await client.states.get(ref)
        except StateNotFoundError:
            return None

    return result_of(backend, get)


def result_of(backend: Backend, work: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
    """What comes of work on the server's connection."""
    return backend.run(work).result()


def course_of(setting: Setting, session: str, state: str) -> Course:
    """What the flags ask for.

    Raises:
        ConfigError: there is no such state to begin at, or the session has begun.
        ClientError: the server has no states.
    """
    start = found(setting.backend, state) if state else None
    if state and start is None:
        raise ConfigError("state", f"there is no {state}")
    return Session(setting, session, start) if session else Whole(setting, start)
