"""A conversation on a named state, blocking: ``client.session(name)``."""

from collections.abc import Callable, Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from wkvm_client.blocking_streams import Stream
from wkvm_client.errors import (
    ClientError,
    ConnectionLostError,
    StaleVersionError,
    StateMovedError,
    StateNotFoundError,
)
from wkvm_client.states import Durability, OnDisconnect, StateInfo
from wkvm_client.turns import PASSED_OVER, TurnOptions, Turns, new_key, parent_of

if TYPE_CHECKING:
    from wkvm_client.blocking_client import Client

T = TypeVar("T")
N_ATTEMPTS = 3
"""How often an operation with an idempotency key is sent, where connections are lost."""


class Session:
    """A conversation that the server remembers: what was said is not sent again.

    One turn at a time: whatever comes next waits for the end of the turn before. A turn whose
    connection is lost goes on by itself; what is appended, forked or rolled back is sent again,
    and carried out once. The server puts a state that nobody uses aside, and fetches it with the
    next turn. A state that moves to another server is followed there.

    If somebody else has moved the state on meanwhile, a turn fails with StaleVersionError and
    ``refresh`` takes the session there.

    Attributes:
        name: of the state.
    """

    def __init__(
        self,
        client: "Client",
        name: str,
        *,
        head: int | None,
        n_tokens: int | None,
        on_disconnect: OnDisconnect,
        durability: Durability | None,
        checkpoint_every: int,
    ) -> None:
        self.name = name
        self._client = client
        self._on_disconnect: OnDisconnect = on_disconnect
        self._durability: Durability | None = durability
        self._checkpoint_every = checkpoint_every
        self._turns = Turns(head, n_tokens)
        self._stream: Stream | None = None

    @property
    def version(self) -> int | None:
        """The newest version that it knows of; 0 for none yet, None where it has to ask."""
        return self._turns.head

    def refresh(self) -> StateInfo | None:
        """Go to the newest version of the state, whoever made it.

        Returns:
            What it is; None where there is none.

        Raises:
            ClientError: nobody knows.
        """
        self._turns.at(None, None)
        self._settle()
        self._turns.at(None, None)
        try:
            info = self._do(lambda: self._client.states.get(self.name))
        except StateNotFoundError:
            self._turns.moved(0, None)
            return None
        self._turns.moved(info.version, info.n_tokens)
        return info

    def append(self, ids: Iterable[int]) -> StateInfo:
        """Add to the conversation, and ask for nothing.

        Raises:
            StaleVersionError: somebody else has moved the state on.
            ClientError: as of ``States.create``.
        """
        ids = tuple(ids)
        head, key = self._head(), new_key()
        info = self._do(
            lambda: self._client.states.create(
                self.name,
                ids,
                state=self._ref() if head else "",
                expected_version=self._turns.head,
                durability=self._durability,
                checkpoint_every=self._checkpoint_every,
                idempotency_key=key,
            )
        )
        self._turns.add(info.version, info.n_tokens)
        return info

    def generate(
        self,
        ids: Iterable[int] = (),
        *,
        began_at: int | None = None,
        idempotency_key: str = "",
        received: int = 0,
        **options: Unpack[TurnOptions],
    ) -> Stream:
        """Take a turn: add ids to the conversation and have it go on.

        The stream is that of ``Client.generate``; its end says which version the state is now. A
        stream that is cancelled has not been; one that is interrupted has been up to there.

        Args:
            ids: what to add; none to go on from where the state is.
            began_at, idempotency_key, received: of a turn that another process asked for with this
                key and the same options: the version that it began with (0 for none), and how many
                ids it had of it. The rest comes.
            options: as of ``Client.generate``.

        Raises:
            ClientError: as ``Client.generate``, and as the turn before if that failed in between.
        """
        head = self._head() if began_at is None else began_at
        self._stream = self._client.generate(
            ids,
            **options,
            state=f"{self.name}@{head}" if head else "",
            save_as=self.name,
            expected_version=head,
            on_disconnect=self._on_disconnect,
            durability=self._durability,
            checkpoint_every=self._checkpoint_every,
            idempotency_key=idempotency_key or new_key(),
            received=received,
        )
        if began_at is None and head:
            self._stream.starts_after(self._turns.n_tokens)
        return self._stream

    def fork(self, name: str, *, keep_randomness: bool = False) -> "Session":
        """A session on a branch, which begins where this one is. This one stays as it is.

        Args:
            name: of the new state.
            keep_randomness: draw what this session would draw.
        """
        self._head()
        key = new_key()
        made = self._do(
            lambda: self._client.states.fork(
                self._ref(),
                name,
                keep_randomness=keep_randomness,
                durability=self._durability,
                idempotency_key=key,
            )
        )
        return Session(
            self._client,
            name,
            head=made[0].version,
            n_tokens=made[0].n_tokens,
            on_disconnect=self._on_disconnect,
            durability=self._durability,
            checkpoint_every=self._checkpoint_every,
        )

    def roll_back(self, n_turns: int = 1) -> StateInfo:
        """Take turns back, and whatever was appended: each counts as one.

        They stay there to be named as ``NAME@VERSION``.

        Raises:
            StateNotFoundError: there were not so many; those that there were are taken back.
        """
        if n_turns < 1:
            raise ValueError(f"n_turns is {n_turns}: at least 1")
        self._head()
        for _ in range(n_turns - 1):
            self._roll_back_one()
        return self._roll_back_one()

    def save(self) -> StateInfo:
        """Keep the conversation as it is so that no crash of the server loses it: a new version."""
        self._head()
        key = new_key()
        info = self._do(
            lambda: self._client.states.snapshot(
                self.name,
                expected_version=self._turns.head,
                durability="disk",
                idempotency_key=key,
            )
        )
        self._turns.at(info.version, info.n_tokens)
        return info

    def hibernate(self) -> StateInfo:
        """Put the state aside now. The next turn fetches it."""
        self._head()
        return self._do(lambda: self._client.states.hibernate(self.name))

    def info(self) -> StateInfo:
        """What the state is now."""
        self._settle()
        return self._do(lambda: self._client.states.get(self.name))

    def close(self) -> None:
        """End a turn that is under way, and keep what there is of it. The state stays."""
        stream, self._stream = self._stream, None
        if stream is not None and not stream.is_over:
            stream.interrupt()
            try:
                self._turns.ended(stream.completion())
            except ClientError:
                # who reads the stream is told
                self._turns.at(None, None)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    # --- inside ---------------------------------------------------------------------------

    def _ref(self) -> str:
        return f"{self.name}@{self._turns.head}"

    def _settle(self) -> None:
        """Wait for the end of the turn before."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        try:
            completion = stream.completion()
        except StateMovedError as error:
            self._move(error)
        except ClientError:
            # its reader was told; whether it has been is for the server to say
            self._turns.at(None, None)
        else:
            if stream.moved_to:
                self._client = self._client.at(stream.moved_to)
                assert completion.state is not None
                self.name = completion.state.name or self.name
                self._turns.moved(completion.state.version, completion.state.n_tokens)
            else:
                self._turns.ended(completion)

    def _head(self) -> int:
        """The version that the session is at, once the turn before has ended."""
        self._settle()
        if self._turns.head is None:
            self.refresh()
        assert self._turns.head is not None
        return self._turns.head

    def _do(self, operation: Callable[[], T]) -> T:
        """Carry an operation out, again where the connection is lost, and where the state is."""
        for attempt in range(1, N_ATTEMPTS + 1):
            try:
                return operation()
            except ConnectionLostError:
                if attempt == N_ATTEMPTS:
                    raise
            except StateMovedError as error:
                if attempt == N_ATTEMPTS:
                    raise
                self._move(error)
        raise AssertionError("the last attempt returns or raises")

    def _move(self, error: StateMovedError) -> None:
        """Go where the state is now.

        Raises:
            StaleVersionError: it is not what it was when this session used it last.
        """
        name, _, _ = error.state.partition("@")
        if not error.target or not name:
            raise error
        client = self._client.at(error.target)
        info = client.states.get(name)
        expected = self._turns.n_tokens
        if expected is not None and info.n_tokens != expected:
            raise StaleVersionError(
                f"{info.ref} at {error.target} has {info.n_tokens} tokens, where {expected} were "
                "expected: somebody else has moved it on"
            )
        self._client, self.name = client, name
        self._turns.moved(info.version, info.n_tokens)

    def _roll_back_one(self) -> StateInfo:
        version = self._turns.start_of_last()
        if version is None:
            version = self._start_before(self._turns.head or 0)
        key = new_key()
        info = self._do(
            lambda: self._client.states.rollback(
                self.name,
                version=version,
                expected_version=self._turns.head,
                idempotency_key=key,
            )
        )
        self._turns.rolled_back(info.version, info.n_tokens)
        return info

    def _start_before(self, version: int) -> int:
        """The version that the turn which made this one began with.

        Raises:
            StateNotFoundError: it began with nothing.
        """
        while True:
            at = version
            log = self._do(
                lambda: self._client.states.log(self.name, before=at + 1, limit=1)  # noqa: B023
            )
            entry = log.entries[0] if log.entries else None
            parent = None if entry is None else parent_of(self.name, entry)
            if entry is None or parent is None:
                raise StateNotFoundError(f"{self.name}: there is no turn to take back")
            if entry.provenance.operation not in PASSED_OVER:
                return parent
            version = parent
