"""docs/protocol.md says what the code does: its tables are read and compared."""

import asyncio
import math
import re
import types
import typing
from dataclasses import fields as dataclass_fields
from pathlib import Path
from typing import Any

import msgspec
import pytest
from wkvm_protocol import messages
from wkvm_protocol.connection import MIN_FRAME_BYTES, ClientConnection, ServerConnection
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import (
    FEATURES,
    MAX_CHUNK_BYTES,
    MAX_FRAME_BYTES,
    MAX_HELLO_FRAME_BYTES,
    MAX_PAGE,
    REPLIES,
    STATES_FEATURE,
    End,
    EndReason,
    Generate,
    Hello,
    HelloOk,
    LineageEntry,
    Message,
    Ping,
    Pong,
    Sampling,
    StateInfo,
    StateLineage,
    StateLineagePage,
    Tokens,
    pack_ids,
)

from tests.engine.states.rig import running
from tests.protocol.vectors import sender_of
from wkvm.core.config import EngineConfig, ServerConfig
from wkvm.core.errors import InvalidParameterError
from wkvm.core.grammar import MAX_GRAMMAR_BYTES
from wkvm.core.prefixes import Budget
from wkvm.core.sampling import MAX_BIASED_IDS, MAX_LOGPROBS, MAX_N, MAX_STOP_IDS, SamplingParams
from wkvm.core.scheduler import Scheduler
from wkvm.engine.states.watching import MAX_CHANGED
from wkvm.server.operations import (
    LARGE_TRANSFERS_PER_TENANT,
    OPERATIONS_PER_CONNECTION,
    OPERATIONS_PER_TENANT,
    TRANSFERS_PER_TENANT,
)
from wkvm.server.state_bytes import TRANSFER_TIMEOUT_S, WHOLE_TRANSFER_S, WINDOW_BYTES
from wkvm.server.watches import WATCHES_PER_CONNECTION, WATCHES_PER_TENANT
from wkvm.state.exchange import MAX_INLINE_BYTES

DOC = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
MESSAGES = Message.__subclasses__()
FLOATS = {"bias_values", "logprobs", "top_logprobs", "vector"}
U32S = {"borders", "lanes", "choices", "counts", "ranks", "used_s"}

Row = dict[str, str]


def table_after(text: str) -> list[Row]:
    """The rows of the first table that comes after ``text``."""
    assert DOC.count(text) == 1, text
    lines = DOC.split(text, 1)[1].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("|"))
    rows = list[list[str]]()
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip("|").split("|")])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[2:]]


def heading_of(message_type: type[Message]) -> str:
    tag = message_type.__struct_config__.tag
    if tag is None:
        return f"### {message_type.__name__} — no tag\n"
    assert isinstance(tag, int)
    sender = sender_of(message_type)
    way = {
        "client": "client to server",
        "server": "server to client",
        "either": "either side",
    }[sender]
    return f"### {message_type.__name__} — tag 0x{tag:02x}, {way}\n"


def test_tags_are_unique() -> None:
    tags = [
        t.__struct_config__.tag for t in MESSAGES if t not in {Sampling, StateInfo, LineageEntry}
    ]
    assert len(set(tags)) == len(tags)


def test_the_reference_has_every_message_and_no_other_in_order_of_tags() -> None:
    headings = re.findall(r"^### \w+ — .*\n", DOC, re.MULTILINE)
    assert sorted(headings) == sorted(map(heading_of, MESSAGES))
    tags = [h for h in headings if "tag 0x" in h]
    assert tags == sorted(tags, key=lambda h: re.findall("0x(..)", h))


@pytest.mark.parametrize("message_type", MESSAGES)
def test_the_fields_of_a_message_are_documented_in_order(message_type: type[Message]) -> None:
    rows = table_after(heading_of(message_type))
    assert [row["field"] for row in rows] == list(message_type.__struct_fields__)
    first = 0 if message_type.__struct_config__.tag is None else 1
    assert [row["#"] for row in rows] == [str(first + i) for i in range(len(rows))]


@pytest.mark.parametrize("message_type", MESSAGES)
def test_the_types_of_a_message_are_documented(message_type: type[Message]) -> None:
    hints = typing.get_type_hints(message_type, include_extras=True)
    for row in table_after(heading_of(message_type)):
        name = row["field"]
        assert row["type"] == type_name(name, hints[name]), name


def type_name(field: str, hint: Any) -> str:
    if typing.get_origin(hint) in (types.UnionType, typing.Union):
        inner = next(a for a in typing.get_args(hint) if a is not type(None))
        return f"{type_name(field, inner)} or nil"
    if hint is bytes:
        return "floats" if field in FLOATS else "u32s" if field in U32S else "ids"
    if hint is str:
        return "text"
    if hint in (int, bool, float, Sampling, StateInfo, LineageEntry):
        return str(hint.__name__)
    if hint is EndReason:
        return "int"
    base, meta = typing.get_args(hint)
    if base is str:
        return f"text({meta.max_length})"
    if base is bytes:
        assert meta.min_length == 1
        return f"bytes({meta.max_length})"
    if base is int:
        bounds = {
            (0, 2**63 - 1): "count",
            (0, 2**32 - 1): "request id",
            (1, 2**31 - 1): "grant",
        }
        return bounds[meta.ge, meta.le]
    if typing.get_origin(base) is tuple:
        (item, _) = typing.get_args(base)
        return f"list of {type_name(field, item)}, up to {meta.max_length}"
    key, value = typing.get_args(base)
    names = f"{type_name(field, key)} to {type_name(field, value)}"
    return f"map of {names}, up to {meta.max_length}"


@pytest.mark.parametrize("message_type", MESSAGES)
def test_the_defaults_of_a_message_are_documented(message_type: type[Message]) -> None:
    written = {
        "": msgspec.NODEFAULT,
        "nil": None,
        "empty": b"",
        "`[]`": (),
        '`""`': "",
        "false": False,
        "true": True,
        "all at their defaults": Sampling(),
    }
    rows = table_after(heading_of(message_type))
    for row, field in zip(rows, msgspec.structs.fields(message_type), strict=True):
        text = row["default"]
        if re.fullmatch(r'`"\w+"`|`"\{\}"`', text):
            value: object = text.strip('`"')
        else:
            value = written[text] if text in written else float(text)
        assert value == field.default, field.name


@pytest.mark.parametrize(
    "row", [r for r in table_after(heading_of(Sampling)) if r["range"]], ids=lambda r: r["field"]
)
def test_the_range_of_a_sampling_field_is_the_documented_one(row: Row) -> None:
    match = re.fullmatch(r"([\[(])(-?\d+), (\d+)\]", row["range"])
    if match is None:
        assert row["field"] in {"bias_ids", "bias_values", "allowed_ids", "stop_ids"}
        return
    bracket, low, high = match.groups()
    is_float = row["type"] == "float"

    def accepts(value: float) -> bool:
        fields: dict[str, Any] = {row["field"]: value}
        if row["field"] == "min_tokens":
            fields["max_tokens"] = 2**31 - 1
        if row["field"] == "max_tokens":
            fields["min_tokens"] = 0
        try:
            SamplingParams(**fields)
        except InvalidParameterError:
            return False
        return True

    bottom: float = float(low) if is_float else int(low)
    top: float = float(high) if is_float else int(high)
    assert accepts(top)
    assert accepts(bottom) == (bracket == "[")
    assert not accepts(math.nextafter(top, math.inf) if is_float else top + 1)
    assert not accepts(math.nextafter(bottom, -math.inf) if is_float else bottom - 1)
    if is_float:
        assert accepts(math.nextafter(bottom, math.inf))
        assert not accepts(math.nan)


def test_the_ranges_that_are_counts_are_the_documented_ones() -> None:
    rows = {row["field"]: row["range"] for row in table_after(heading_of(Sampling))}
    assert rows["stop_ids"].startswith(f"up to {MAX_STOP_IDS:,},")
    assert rows["bias_ids"].startswith(f"up to {MAX_BIASED_IDS:,},")
    ids = tuple(range(MAX_STOP_IDS + 1))
    SamplingParams(stop_ids=ids[:-1])
    with pytest.raises(InvalidParameterError):
        SamplingParams(stop_ids=ids)


def test_sampling_is_that_of_the_core() -> None:
    """Same names, same defaults: only bias is a pair of fields here, and Embed has the pooling."""
    core = {f.name: f.default for f in dataclass_fields(SamplingParams)}
    wire = {f.name: f.default for f in msgspec.structs.fields(Sampling)}
    assert core.pop("logit_bias") == ()
    assert core.pop("pooling") is None
    assert wire.pop("bias_ids") == wire.pop("bias_values") == b""
    assert core.pop("stop_ids") == ()
    assert wire.pop("stop_ids") == b""
    assert core == wire


def test_every_error_code_has_a_row_and_no_other() -> None:
    rows = table_after("## Errors\n")
    assert [(row["code"], row["name"]) for row in rows] == [
        (str(int(c)), c.name) for c in ErrorCode
    ]
    for row, code in zip(rows, ErrorCode, strict=True):
        assert row["retryable"] == ("yes" if code.retryable else "no"), code
        assert row["sent as"] in {"Error", "Failed", "Failed or Error"}
        assert ("Error" in row["sent as"]) == (code < 200 or code in {303, 500}), code


def test_the_reasons_are_documented() -> None:
    rows = table_after("**End.** ")
    assert [(row["number"], row["reason"]) for row in rows] == [
        (str(int(r)), r.name) for r in EndReason
    ]


def test_the_limits_are_the_defaults() -> None:
    settings = {
        f.name: f.default for c in (ServerConfig, EngineConfig) for f in dataclass_fields(c)
    }
    fixed = {
        "payload before HelloOk": MAX_HELLO_FRAME_BYTES,
        "smallest `max_frame_bytes` of either side": MIN_FRAME_BYTES,
        "choices, `n`": MAX_N,
        "`logprobs` and `prompt_logprobs`": MAX_LOGPROBS,
        "`stop_ids`": MAX_STOP_IDS,
        "`bias_ids`": MAX_BIASED_IDS,
        "`grammar`, in UTF-8": MAX_GRAMMAR_BYTES,
        "operations on states of one connection": OPERATIONS_PER_CONNECTION,
        "operations on states of one tenant": OPERATIONS_PER_TENANT,
        "watches of one connection": WATCHES_PER_CONNECTION,
        "watches of one tenant": WATCHES_PER_TENANT,
        "handles that a watch remembers to have changed": MAX_CHANGED,
        "transfers of states of one tenant": TRANSFERS_PER_TENANT,
        "transfers of states above 256 MiB of one tenant": LARGE_TRANSFERS_PER_TENANT,
        "the file of a state in a GenerateOn": MAX_INLINE_BYTES,
        "bytes of a state that are granted ahead of their use": WINDOW_BYTES,
        "silence of a client in a transfer": TRANSFER_TIMEOUT_S,
        "a whole transfer in which the server waits for the client": WHOLE_TRANSFER_S,
    }
    rows = table_after("## Limits\n")
    for row in rows:
        number = float(row["default"].split(" ")[0].replace(",", ""))
        setting = row["setting"].strip("`")
        expected = settings[setting] if setting else fixed.pop(row["what"])
        assert number == expected, row["what"]
    assert not fixed
    documented = {row["setting"].strip("`") for row in rows}
    of_the_process = {"step_timeout_s", "max_loop_lag_s"}
    assert documented >= {
        f.name
        for f in dataclass_fields(ServerConfig)
        if f.name not in {"host", "binary_port", "binary_uds", "api_keys", *of_the_process}
    }
    assert settings["max_frame_bytes"] == MAX_FRAME_BYTES


def bounds_of(text: str) -> list[int]:
    """The bounds that a row of the histograms' table stands for."""
    start, _, last = text.partition(" ... ")
    bounds = [int(bound) for bound in start.rstrip(",").split(", ")]
    while bounds[-1] < int(last):
        bounds.append(bounds[-3] * 10)
    assert bounds[-1] == int(last)
    return bounds


def test_the_counters_are_documented(tmp_path: Path) -> None:
    async def of_states() -> set[str]:
        async with running(tmp_path) as states:
            return set(states.service.stats())

    budget = Budget(host_bytes=1, device_bytes=1, every=0, record_bytes=1)
    scheduler = Scheduler(EngineConfig(), vocab_size=4, eos_ids=(), has_guest=True, budget=budget)
    of_loop = {"step_age_us"}
    of_server = {"n_connections", "n_lanes", "loop_lag_us", "loop_stalls_total", "memory_refuses"}
    names = {row["name"] for row in table_after("## Counters\n")}
    for row in table_after("### Histograms\n"):
        ends = [f"le_{bound}" for bound in bounds_of(row["bounds"])]
        names |= {f"{row['name']}_{end}" for end in (*ends, "count", "sum")}
    assert names == set(scheduler.stats()) | of_loop | of_server | asyncio.run(of_states())
    assert len(names) < 1024


def test_the_conversation_is_byte_for_byte_what_it_says() -> None:
    client, server = ClientConnection(), ServerConnection()
    client.send_hello()
    seen = list[object]()
    for sender, block in re.findall(r"```frame (\w+)\n(.*?)```", DOC, re.DOTALL):
        lines = [line.split("#")[0] for line in block.splitlines()]
        frame = bytes.fromhex("".join(lines))
        if sender == "client":
            seen += server.receive_data(frame)
            if len(seen) == 1:
                server.send_hello_ok(
                    ping_interval_ms=15_000,
                    server="wkvm/0.1.0",
                    model="tiny",
                    model_digest="",
                    layout_fingerprint="",
                    tokenizer_digest="",
                    vocab_size=256,
                    eos_ids=(0, 1),
                    n_slots=64,
                    max_model_len=0,
                )
            if isinstance(seen[-1], Generate):
                client.send(seen[-1])
        else:
            seen += client.receive_data(frame)
    served = HelloOk(
        1, (), 1 << 20, 1024, 15_000, "wkvm/0.1.0", "tiny", "", "", "", 256, pack_ids([0, 1]), 64, 0
    )
    assert seen == [
        Hello("wkvm", 1, 1),
        served,
        Generate(7, pack_ids([72, 105]), Sampling(temperature=0.0)),
        Tokens(pack_ids([7]), pack_ids([33])),
        End(7, 0, EndReason.STOP, 0, 2, 1, 150, 2100, 3000),
        Ping(5),
        Pong(5),
    ]
    assert len(client.lanes) == 0


def test_links_within_the_document_resolve() -> None:
    headings = re.findall(r"^#+ (.*)$", DOC, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    links = re.findall(r"\]\(#([^)]*)\)", DOC)
    assert links
    assert set(links) <= anchors


def test_tags_are_in_the_ranges_that_are_documented() -> None:
    gated = {t.__struct_config__.tag for t, name in FEATURES.items() if name == STATES_FEATURE}
    gated |= {StateLineage.__struct_config__.tag, StateLineagePage.__struct_config__.tag}
    for message_type in MESSAGES:
        tag = message_type.__struct_config__.tag
        assert tag is None or isinstance(tag, int)
        assert tag is None or (0x20 <= tag <= 0x3F or tag in (0x15, 0x1C)) == (tag in gated)
    assert "0x20 to 0x3f operations on states" in DOC
    assert messages.PROTOCOL_VERSION == 1


def test_what_closes_the_lane_of_an_operation_is_documented() -> None:
    rows = {row["opened by"]: row["closes the lane"] for row in table_after("answers come in the")}
    others = rows["all other requests of states"]
    named = {name: closes for names, closes in rows.items() for name in names.split(", ")}
    for opening, reply in REPLIES.items():
        closes = named.get(opening.__name__, others)
        assert closes.replace(";", ",").split(",")[0] == reply.__name__


def test_numbers_of_states_are_those_of_the_code() -> None:
    assert f"at most {MAX_CHUNK_BYTES:,} bytes" in DOC
    assert f"in [1, {MAX_PAGE}]" in DOC
