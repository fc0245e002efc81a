"""How the gateway processes of one port find the engine: beside them, or at an address."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import msgspec
from wkvm_protocol.address import UnixAddress

from wkvm.assembly.http import HINT_APART, engines_apart, is_public
from wkvm.assembly.texts import check_tokenizer
from wkvm.gateway.config import GatewayConfig
from wkvm.gateway.texts import Texts
from wkvm.server.serve import Server


class Reach(msgspec.Struct, kw_only=True):
    """Where the engine is.

    Attributes:
        own: its address for the gateway itself.
        clients: that for its clients.
        own_key: the gateway's, where the engine's process is another than that of the workers'
            parent, and asks for one.
        is_apart: whether it is another.
        is_public: whether others than this machine's users can reach the port.
        has_keys: whether clients need keys.
    """

    own: str
    clients: str
    own_key: str | None = None
    is_apart: bool = False
    is_public: bool = False
    has_keys: bool


Find: TypeAlias = Callable[[Path], Awaitable[Reach]]
"""Finds the engine. It may make sockets in the folder."""


def beside_server(server: Server, *, has_keys: bool) -> Find:
    """Finds the engine that a server of this process serves: on sockets for the workers alone."""

    async def find(folder: Path) -> Reach:
        own, clients = str(folder / "own"), str(folder / "clients")
        await server.listen_beside(own, is_trusted=True)
        await server.listen_beside(clients, is_trusted=False)
        return Reach(
            own=str(UnixAddress(own)), clients=str(UnixAddress(clients)), has_keys=has_keys
        )

    return find


def at_address(config: GatewayConfig, texts: Texts, address: str, api_key: str | None) -> Find:
    """Finds an engine that runs elsewhere; see ``apart``.

    Raises:
        InvalidParameterError, PlaintextKeyError: as ``apart``.
    """
    for_all = is_public(config)
    engines = engines_apart(address, api_key, is_public=for_all)

    async def find(folder: Path) -> Reach:
        del folder
        try:
            await engines.open()
            check_tokenizer(texts.tokenizer, engines.info, hint=HINT_APART)
            return Reach(
                own=address,
                clients=address,
                own_key=api_key,
                is_apart=True,
                is_public=for_all,
                has_keys=engines.needs_key,
            )
        finally:
            await engines.aclose()

    return find
