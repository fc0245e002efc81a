"""Clients of the binary protocol: asyncio and blocking.

``connect`` and ``from_socket`` make a blocking client; ``aio`` has the same two for asyncio.
"""

from wkvm_protocol.messages import EndReason, HelloOk

from wkvm_client import aio, errors
from wkvm_client.blocking import Choice, Client, Session, Stream, connect, from_socket, migrate
from wkvm_client.drafts import Grammar
from wkvm_client.errors import ClientError
from wkvm_client.results import Completion, Timings, TokenLogprobs, TopLogprob
from wkvm_client.states import Migrated, StateEnd, StateInfo

__all__ = [
    "Choice",
    "Client",
    "ClientError",
    "Completion",
    "EndReason",
    "Grammar",
    "HelloOk",
    "Migrated",
    "Session",
    "StateEnd",
    "StateInfo",
    "Stream",
    "Timings",
    "TokenLogprobs",
    "TopLogprob",
    "aio",
    "connect",
    "errors",
    "from_socket",
    "migrate",
]
