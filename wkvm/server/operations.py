"""Operations on states: each is a task that is bound to a lane, and ends with it."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

from wkvm_protocol import messages as wire
from wkvm_protocol.connection import failure
from wkvm_protocol.errors import ErrorCode

from wkvm.core.errors import (
    BadStateFileError,
    InvalidParameterError,
    QueueFullError,
    WkvmError,
)
from wkvm.core.registry import parse_ref
from wkvm.server.errors import refusal
from wkvm.server.interface import States
from wkvm.server.operation import Operation, StateClient
from wkvm.server.state_bytes import (
    TRANSFER_TIMEOUT_S,
    WHOLE_TRANSFER_S,
    Download,
    Upload,
)
from wkvm.server.state_calls import carry_out
from wkvm.server.state_fields import (
    FIELD_NAMES,
    durability_of,
    expiry_of,
    form_of,
    info_message,
)

logger = logging.getLogger("wkvm.server")

OPERATIONS_PER_CONNECTION = 256
OPERATIONS_PER_TENANT = 1024
TRANSFERS_PER_TENANT = 32
"""Operations that move bytes of states; each may have one state in memory."""
LARGE_BYTES, LARGE_TRANSFERS_PER_TENANT = 2**28, 4
"""Of states of more than so many bytes a tenant may have so many in memory."""

TRANSFERS = (wire.StateExport, wire.StateImport, wire.GenerateOn)


class Operations:
    """The operations of all connections. All methods belong to the loop's thread.

    Args:
        states: carries them out.
        clock: seconds since 1970.
        timeout_s: how long a client may keep bytes waiting.
        whole_s: how long all bytes of a state may take.
    """

    def __init__(
        self,
        states: States,
        clock: Callable[[], float],
        *,
        timeout_s: float = TRANSFER_TIMEOUT_S,
        whole_s: float = WHOLE_TRANSFER_S,
    ) -> None:
        self._states = states
        self._clock = clock
        self._timeout_s = timeout_s
        self._whole_s = whole_s
        self._of_clients = dict[StateClient, dict[int, Operation]]()
        self._n_of_tenants = Counter[str]()
        self._n_transfers = Counter[str]()
        self._n_large = Counter[str]()
        self._tasks = set[asyncio.Task[None]]()
        self._moving = dict[StateClient, set[str]]()

    @property
    def n_open(self) -> int:
        """How many are under way."""
        return sum(map(len, self._of_clients.values()))

    @property
    def n_transfers(self) -> int:
        """How many places for transfers are taken."""
        return self._n_transfers.total()

    # --- from the connection --------------------------------------------------------------

    def open(self, client: StateClient, message: wire.StateOperation) -> None:
        """Begin an operation, or refuse it."""
        self._begin(client, message, lambda operation: self._reply(operation, message))

    def receive_inline(
        self, client: StateClient, message: wire.GenerateOn, then: Callable[[bytes], None]
    ) -> None:
        """Take the state that a request starts from, and then go on."""

        async def receive(operation: Operation) -> None:
            inline = await self._inline(operation, message)
            self._forget(operation)
            then(inline)

        self._begin(client, message, receive)

    def send_inline(self, client: StateClient, inline: bytes, end: wire.EndOn) -> None:
        """Send the state at the end of a request, and then the end, which closes the lane.

        The place among the transfers that was taken for the request is free when that is done.
        """

        async def send(operation: Operation) -> wire.EndOn:
            done = await operation.sent.send(len(inline), None, [memoryview(inline)])
            client.send([done])
            return end

        operation = Operation(client, end.request_id, is_transfer=True)
        operation.download = self._download(client, end.request_id)
        self._start(operation, send(operation))

    def receive(
        self, client: StateClient, message: wire.StateChunk | wire.StateBytesEnd | wire.StateCredit
    ) -> None:
        """Take what came on the lane of an operation; one that has ended needs nothing."""
        operation = self._of_clients.get(client, {}).get(message.request_id)
        if operation is None:
            return
        if isinstance(message, wire.StateCredit):
            if operation.download is not None:
                operation.download.grant()
        elif operation.upload is not None:
            operation.upload.put(message)

    def cancel(self, client: StateClient, request_id: int) -> None:
        """End an operation, if it is one. Its answer follows."""
        operation = self._of_clients.get(client, {}).get(request_id)
        if operation is not None:
            operation.cancel()

    def lost(self, client: StateClient) -> None:
        """End all operations of a connection that is gone; what it was moving stays."""
        for request_id in list(self._of_clients.get(client, {})):
            self.cancel(client, request_id)
        for name in self._moving.pop(client, ()):
            self._spawn(self._leave(client.tenant, name))

    async def close(self, grace_s: float = 0.0) -> None:
        """Wait for the ends of all, cancel what is left after ``grace_s``, and wait for that."""
        if self._tasks and grace_s:
            await asyncio.wait(list(self._tasks), timeout=grace_s)
        for of_client in self._of_clients.values():
            for operation in of_client.values():
                operation.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # --- places ---------------------------------------------------------------------------

    def take_place(self, tenant: str) -> None:
        """Count a transfer that comes later.

        Raises:
            QueueFullError: the tenant has as many as it may.
        """
        if self._n_transfers[tenant] >= TRANSFERS_PER_TENANT:
            raise QueueFullError(TRANSFERS_PER_TENANT, "transfers of states of a tenant")
        self._n_transfers[tenant] += 1

    def free_place(self, tenant: str) -> None:
        """The reverse of ``take_place``."""
        self._n_transfers[tenant] -= 1
        if not self._n_transfers[tenant]:
            del self._n_transfers[tenant]

    def _take_large_place(self, operation: Operation, n_bytes: int) -> None:
        """Count a transfer of a large state. There are fewer places for these.

        Raises:
            QueueFullError: the tenant has as many as it may.
        """
        if n_bytes <= LARGE_BYTES:
            return
        if self._n_large[operation.tenant] >= LARGE_TRANSFERS_PER_TENANT:
            raise QueueFullError(
                LARGE_TRANSFERS_PER_TENANT, "transfers of large states of a tenant"
            )
        self._n_large[operation.tenant] += 1
        operation.is_large = True

    def _free_large_place(self, operation: Operation) -> None:
        if not operation.is_large:
            return
        operation.is_large = False
        self._n_large[operation.tenant] -= 1
        if not self._n_large[operation.tenant]:
            del self._n_large[operation.tenant]

    # --- tasks ----------------------------------------------------------------------------

    def _begin(
        self,
        client: StateClient,
        message: wire.StateOperation | wire.GenerateOn,
        work: Callable[[Operation], Coroutine[Any, Any, wire.ServerMessage | None]],
    ) -> None:
        is_transfer = isinstance(message, TRANSFERS)
        names = FIELD_NAMES.get(type(message))
        operation = Operation(client, message.request_id, is_transfer=is_transfer, names=names)
        try:
            if len(self._of_clients.get(client, {})) >= OPERATIONS_PER_CONNECTION:
                raise QueueFullError(OPERATIONS_PER_CONNECTION, "operations on a connection")
            if self._n_of_tenants[client.tenant] >= OPERATIONS_PER_TENANT:
                raise QueueFullError(OPERATIONS_PER_TENANT, "operations of a tenant")
            if isinstance(message, wire.StateImport):
                self._take_large_place(operation, message.n_bytes)
            if is_transfer:
                self.take_place(client.tenant)
        except QueueFullError as error:
            self._free_large_place(operation)
            client.send([refusal(message.request_id, error)])
            return
        # at once: what follows may be in the same read
        match message:
            case wire.StateImport(n_bytes=n_bytes) | wire.GenerateOn(inline_bytes=n_bytes):
                operation.upload = Upload(
                    client, message.request_id, n_bytes, self._timeout_s, self._whole_s
                )
            case wire.StateExport():
                operation.download = self._download(client, message.request_id)
            case _:
                pass
        self._start(operation, work(operation))

    def _start(
        self, operation: Operation, work: Coroutine[Any, Any, wire.ServerMessage | None]
    ) -> None:
        self._n_of_tenants[operation.tenant] += 1
        self._of_clients.setdefault(operation.client, {})[operation.request_id] = operation
        operation.task = self._spawn(self._run(operation, work))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _run(
        self, operation: Operation, work: Coroutine[Any, Any, wire.ServerMessage | None]
    ) -> None:
        """Where an operation ends, however it does: one answer, and its place is free."""
        answer: wire.ServerMessage | None
        operation.has_begun = True
        try:
            if operation.is_cancelled:
                raise asyncio.CancelledError
            answer = await work
        except asyncio.CancelledError:
            answer = failure(operation.request_id, ErrorCode.CANCELLED, "it was cancelled")
        except Exception as error:  # noqa: BLE001  (refusal() logs what was not raised on purpose)
            answer = refusal(operation.request_id, error, operation.names)
        finally:
            work.close()  # of one that was cancelled before its first step
            self._forget(operation)
        if answer is not None:
            operation.client.send([answer])

    def _forget(self, operation: Operation) -> None:
        of_client = self._of_clients.get(operation.client, {})
        if of_client.get(operation.request_id) is not operation:
            return
        del of_client[operation.request_id]
        if not of_client:
            del self._of_clients[operation.client]
        self._n_of_tenants[operation.tenant] -= 1
        if not self._n_of_tenants[operation.tenant]:
            del self._n_of_tenants[operation.tenant]
        self._free_large_place(operation)
        if operation.is_transfer:
            self.free_place(operation.tenant)

    # --- migrations -----------------------------------------------------------------------

    def _note_moving(self, operation: Operation, message: wire.StateOperation) -> None:
        """Remember who moves what: if that connection goes, the state stays here."""
        if isinstance(message, wire.MigrateBegin):
            self._moving.setdefault(operation.client, set()).add(message.state)
        elif isinstance(message, wire.MigrateEnd):
            for client, names in list(self._moving.items()):
                if client.tenant == operation.tenant:
                    names.discard(message.state)
                if not names:
                    del self._moving[client]

    async def _leave(self, tenant: str, name: str) -> None:
        try:
            await self._states.migrate_end(tenant, name, moved=None)
        except WkvmError as error:
            logger.info("a migration was over already: %s", type(error).__name__)
        except Exception:
            logger.exception("internal error at the end of a migration")

    # --- what they do ---------------------------------------------------------------------

    async def _reply(
        self, operation: Operation, message: wire.StateOperation
    ) -> wire.ServerMessage:
        match message:
            case wire.StateExport():
                return await self._export(operation, message)
            case wire.StateImport():
                return await self._import(operation, message)
            case wire.StateSnapshot():
                return await self._snapshot(operation, message)
            case _:
                try:
                    reply = await carry_out(
                        self._states,
                        operation.tenant,
                        message,
                        now=self._clock(),
                        max_bytes=operation.client.max_frame_bytes,
                    )
                except asyncio.CancelledError:
                    if isinstance(message, wire.MigrateBegin):
                        self._spawn(self._leave(operation.tenant, message.state))
                    raise
                self._note_moving(operation, message)
                return reply

    async def _export(self, operation: Operation, message: wire.StateExport) -> wire.StateBytesEnd:
        source = await self._states.export(
            operation.tenant, parse_ref(message.state), form_of(message.format)
        )
        self._take_large_place(operation, source.n_bytes)
        return await operation.sent.send(source.n_bytes, source.info, source.chunks())

    async def _import(self, operation: Operation, message: wire.StateImport) -> wire.StateVersions:
        sink = await self._states.importing(
            operation.tenant,
            message.name,
            n_bytes=message.n_bytes,
            form=form_of(message.format),
            tags=message.tags,
            expires_at=expiry_of(message.expires_in_ms, self._clock()),
            expected_version=message.expected_version,
            durability=durability_of(message.durability),
            idempotency_key=message.idempotency_key or None,
        )
        try:
            while (chunk := await operation.received.next()) is not None:
                await sink.write(chunk)
            info = await sink.finish()
        finally:
            sink.abort()
        return wire.StateVersions(message.request_id, (info_message(info),))

    async def _inline(self, operation: Operation, message: wire.GenerateOn) -> bytes:
        most = self._states.max_inline_bytes
        if message.inline_bytes > most:
            raise BadStateFileError(
                f"{message.inline_bytes:,} bytes are announced, the limit with a request is "
                f"{most:,}; import it under a name"
            )
        inline = bytearray()
        while (chunk := await operation.received.next()) is not None:
            inline += chunk
        return bytes(inline)

    def _download(self, client: StateClient, request_id: int) -> Download:
        return Download(client, request_id, self._timeout_s, self._whole_s)

    async def _snapshot(
        self, operation: Operation, message: wire.StateSnapshot
    ) -> wire.StateVersions:
        if bool(message.state) == (message.lane is not None):
            raise InvalidParameterError("state", "exactly one of state and lane")
        wanted = durability_of(message.durability)
        if message.lane is None:
            info = await self._states.snapshot(
                operation.tenant,
                parse_ref(message.state),
                save_as=message.save_as or None,
                expected_version=message.expected_version,
                durability=wanted,
                idempotency_key=message.idempotency_key or None,
            )
        else:
            lane = operation.client.lanes.get(message.lane)
            if lane is None or not lane.is_on_state or len(lane.choices) != 1:
                raise InvalidParameterError("lane", "no open GenerateOn of one choice")
            info = await self._states.snapshot_running(
                operation.tenant,
                next(iter(lane.choices)),
                save_as=message.save_as or None,
                expected_version=message.expected_version,
                durability=wanted,
                idempotency_key=message.idempotency_key or None,
            )
        return wire.StateVersions(message.request_id, (info_message(info),))
