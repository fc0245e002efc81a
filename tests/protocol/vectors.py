"""Reads, checks and records the golden vectors: see protocol/README.md.

``python tests/protocol/vectors.py`` checks all of them. With ``--record`` it fills in the
hex of vectors that have none yet; what was recorded is never written again.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
from wkvm_protocol import messages
from wkvm_protocol.codec import payload_of
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    MAX_FRAME_BYTES,
    ClientMessage,
    LineageEntry,
    Message,
    Sampling,
    ServerMessage,
    StateInfo,
    pack_floats,
    pack_ids,
    unpack_floats,
    unpack_ids,
)

FOLDER = Path(__file__).parents[2] / "protocol" / "vectors"

_FLOATS = frozenset({"bias_values", "logprobs", "top_logprobs", "vector"})
_TEXTS = frozenset({"features", "gone", "names", "parents", "states"})


@dataclass(frozen=True)
class Vector:
    """A legal frame. ``fields`` are those of the message, by name, as JSON values."""

    name: str
    type: str
    sender: str
    fields: dict[str, Any]
    payload: bytes
    frame: bytes
    decode_only: bool = False


@dataclass(frozen=True)
class IllegalVector:
    """A frame that has to be refused in a state."""

    name: str
    why: str
    sender: str
    state: str
    frame: bytes
    code: int


def read(path: Path) -> Vector | IllegalVector:
    """Read one file. An unknown or a missing key is an error."""
    raw = json.loads(path.read_text(encoding="utf-8"))
    for key in ("payload", "frame"):
        if key in raw:
            raw[key] = bytes.fromhex(raw[key])
    vector = IllegalVector(**raw) if "code" in raw else Vector(**raw)
    if vector.name != path.stem:
        raise ValueError(f"{path.name} holds the vector {vector.name}")
    return vector


def read_all() -> list[Vector | IllegalVector]:
    """Read all vectors, by name."""
    return [read(path) for path in sorted(FOLDER.glob("*.json"))]


def message_of(vector_type: str, fields: dict[str, Any]) -> Message:
    """Make a message from its fields by name."""
    message_type: type[Message] = getattr(messages, vector_type)
    return message_type(**{name: _to_value(name, value) for name, value in fields.items()})


def examples(union: Any) -> list[Any]:
    """One message of each type of a union: of those vectors that leave out what they can."""
    defaults = [read(path) for path in sorted(FOLDER.glob("*-defaults.json"))]
    wanted = {one.__name__ for one in get_args(union)}
    return [
        message_of(one.type, one.fields)
        for one in defaults
        if isinstance(one, Vector) and one.type in wanted
    ]


def fields_of(message: Message) -> dict[str, Any]:
    """Turn a message into its fields by name."""
    return {name: _to_json(name, getattr(message, name)) for name in fields_sent(message)}


def fields_sent(message: Message) -> list[str]:
    """The names of the fields of a message that are sent: who a key is of, only if it is told."""
    is_left_out = isinstance(message, messages.HelloOk) and not message.tenant
    return list(message.__struct_fields__[: -1 if is_left_out else None])


def sender_of(message_type: type[Message]) -> str:
    """Who sends such messages: client, server or either."""
    from_client = message_type in get_args(ClientMessage)
    from_server = message_type in get_args(ServerMessage)
    return "either" if from_client and from_server else "client" if from_client else "server"


def _to_value(name: str, value: Any) -> Any:
    if name == "sampling":
        return Sampling(**{inner: _to_value(inner, v) for inner, v in value.items()})
    if isinstance(value, dict) and name == "state":
        return StateInfo(**{inner: _to_value(inner, v) for inner, v in value.items()})
    if name == "states" and value and isinstance(value[0], dict):
        return tuple(_to_value("state", one) for one in value)
    if name == "entries":
        return tuple(
            LineageEntry(**{inner: _to_value(inner, v) for inner, v in one.items()})
            for one in value
        )
    if name in _TEXTS:
        return tuple(value)
    if name == "data":
        return bytes.fromhex(str(value))
    if name == "reason":
        return messages.EndReason(value)
    if isinstance(value, list):
        return pack_floats(value) if name in _FLOATS else pack_ids(value)
    return value


def _to_json(name: str, value: Any) -> Any:
    if isinstance(value, Sampling | StateInfo | LineageEntry):
        return fields_of(value)
    if isinstance(value, tuple):
        return [_to_json("state", one) for one in value]
    if name == "data":
        return value.hex()
    if isinstance(value, bytes):
        return list(unpack_floats(value) if name in _FLOATS else unpack_ids(value))
    return int(value) if name == "reason" else value


def problem(vector: Vector) -> str | None:
    """What a legal vector gets wrong, if anything."""
    message = message_of(vector.type, vector.fields)
    if encode_frame(vector.payload, MAX_FRAME_BYTES) != vector.frame:
        return "the frame is not the payload's"
    if msgspec.msgpack.decode(vector.payload, type=type(message)) != message:
        return "the payload decodes to other fields"
    if not vector.decode_only and payload_of(message) != vector.payload:
        return "the fields encode to another payload"
    return None


def _record(path: Path) -> bool:
    raw = json.loads(path.read_text(encoding="utf-8"))
    if "payload" in raw or "frame" in raw or "code" in raw:
        return False
    message = message_of(raw["type"], raw["fields"])
    payload = payload_of(message)
    raw = {
        "name": raw["name"],
        "type": raw["type"],
        "sender": sender_of(type(message)),
        "fields": fields_of(message),
        "payload": payload.hex(),
        "frame": encode_frame(payload, MAX_FRAME_BYTES).hex(),
    }
    path.write_text(json.dumps(raw, indent=2) + "\n", encoding="utf-8")
    return True


def main(arguments: list[str]) -> int:
    """Check or record; the exit status."""
    if arguments == ["--record"]:
        for path in sorted(FOLDER.glob("*.json")):
            if _record(path):
                print(f"recorded {path.name}")
    elif arguments:
        print(__doc__)
        return 2
    bad = 0
    vectors = read_all()
    for vector in vectors:
        wrong = problem(vector) if isinstance(vector, Vector) else None
        if wrong:
            bad += 1
            print(f"{vector.name}: {wrong}")
    print(f"{len(vectors)} vectors, {bad} wrong")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
