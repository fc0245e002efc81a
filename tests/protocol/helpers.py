"""Connections that are open, and a pipe between two of them."""

from typing import Any

from wkvm_protocol.connection import ClientConnection, ServerConnection
from wkvm_protocol.messages import Generate, Sampling, pack_ids

SERVED: dict[str, Any] = {
    "ping_interval_ms": 25_000,
    "server": "wkvm/test",
    "model": "m",
    "model_digest": "d",
    "layout_fingerprint": "f",
    "tokenizer_digest": "t",
    "vocab_size": 256,
    "eos_ids": (0, 1),
    "n_slots": 4,
    "max_model_len": 0,
}


def open_pair(
    *, max_lanes: int = 1024, client_limit: int = 1 << 20, server_limit: int = 1 << 20
) -> tuple[ClientConnection, ServerConnection]:
    """A client and a server that have agreed."""
    client = ClientConnection(max_frame_bytes=client_limit)
    server = ServerConnection(max_frame_bytes=server_limit, max_lanes=max_lanes)
    server.receive_data(client.send_hello())
    client.receive_data(server.send_hello_ok(**SERVED))
    return client, server


def generate(request_id: int, *, n: int = 1, prompt: tuple[int, ...] = (5, 6)) -> Generate:
    """A small request."""
    return Generate(request_id, pack_ids(prompt), Sampling(n=n))
