"""What all connections of a server have in common."""

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from wkvm_protocol.connection import ServerConnection
from wkvm_protocol.messages import (
    EMBED_FEATURE,
    GRAMMAR_FEATURE,
    PREFIX_FEATURE,
    SCORE_FEATURE,
    STATES_FEATURE,
    TENANT_FEATURE,
    WATCH_FEATURE,
)

from wkvm.core.config import ServerConfig
from wkvm.engine.interface import EngineInfo
from wkvm.server.auth import ConnectionCounts, Keyring
from wkvm.server.dispatch import Dispatcher


class Ending(Protocol):
    """A connection, as a server that ends sees it."""

    def go_away(self, message: str) -> None:
        """Tell the peer to open no more lanes; those that are open go on."""
        ...

    def close(self) -> None:
        """Close once what was written is sent; what was asked for is cancelled without a word."""
        ...

    def abort(self) -> None:
        """Close at once."""
        ...


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(eq=False, slots=True, kw_only=True)
class Shared:
    """What all connections of a server have in common."""

    config: ServerConfig
    info: EngineInfo
    server: str
    dispatcher: Dispatcher
    keyring: Keyring
    counts: ConnectionCounts
    connections: set[Ending] = field(default_factory=set[Ending])
    none_left: asyncio.Event = field(default_factory=_set_event)
    is_draining: bool = False

    def features(self) -> list[str]:
        """What clients may use of what the protocol leaves open."""
        features = [SCORE_FEATURE, EMBED_FEATURE, PREFIX_FEATURE, TENANT_FEATURE]
        if self.info.takes_grammars:
            features.append(GRAMMAR_FEATURE)
        if self.dispatcher.takes_states:
            features += [STATES_FEATURE, WATCH_FEATURE]
        return features

    def hello_ok(self, wire: ServerConnection, tenant: str) -> bytes:
        """What a client is told that is let in."""
        info = self.info
        return wire.send_hello_ok(
            ping_interval_ms=round(self.config.ping_interval_s * 1000),
            server=self.server,
            model=info.model,
            model_digest=info.model_digest,
            layout_fingerprint=info.layout_fingerprint,
            tokenizer_digest=info.tokenizer_digest,
            vocab_size=info.vocab_size,
            eos_ids=info.eos_ids,
            n_slots=info.n_slots,
            max_model_len=info.max_model_len or 0,
            tenant=tenant,
        )
