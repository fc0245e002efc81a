"""Who may do what: rows 7 and 8 of the threat table, and the limits on connections."""

import ast
import hashlib
import hmac
import logging
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.framing import encode_frame
from wkvm_protocol.messages import (
    FEATURES,
    Cancel,
    ClientMessage,
    Credit,
    EndReason,
    Generate,
    GoAway,
    Hello,
    Ping,
    Pong,
    Sampling,
    Stats,
    pack_ids,
)

from tests.protocol.vectors import examples
from tests.server.harness import serving, tcp_config
from wkvm.core.api_keys import ApiKey, parse_api_keys
from wkvm.core.config import ServerConfig
from wkvm.core.errors import ConfigError
from wkvm.server import auth
from wkvm.server.auth import ConnectionCounts, Keyring

KEYS = (ApiKey.of("blue-key", "blue"), ApiKey.of("red-key", "red"), ApiKey.of("red-2", "red"))

REQUESTS: Sequence[ClientMessage] = (
    Ping(1),
    Pong(1),
    GoAway(),
    Generate(1, pack_ids([1]), Sampling()),
    Cancel(1),
    Credit(1, 1),
    Stats(1),
    *(one for one in examples(ClientMessage) if type(one) in FEATURES),
)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "192.0.2.1", "example.org"])
def test_without_a_key_only_loopback_can_be_bound(host: str) -> None:
    with pytest.raises(ConfigError, match=r"^host: "):
        ServerConfig(host=host)
    assert ServerConfig(host=host, api_keys=KEYS).host == host
    assert ServerConfig(host=host, binary_port=None, binary_uds="/tmp/x").host == host


@pytest.mark.parametrize("host", ["127.0.0.1", "127.3.2.1", "::1", "localhost"])
def test_without_a_key_loopback_can_be_bound(host: str) -> None:
    assert ServerConfig(host=host).host == host


def test_the_table_of_requests_holds_every_message_of_a_client() -> None:
    assert {type(request) for request in REQUESTS} | {Hello} == set(ClientMessage.__args__)


async def test_the_log_tells_of_connections_and_not_whose_they_are_or_what_they_ask(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.DEBUG, logger="wkvm"):
        async with serving(tcp_config(api_keys=KEYS), control_key="blue-key") as rig:
            client = await rig.client("red-key")
            await client.generate((41, 42, 43), max_tokens=2)
            client.abort()
            await rig.assert_idle(n_connections=1)
    assert caplog.messages == [
        "connection opened, 1 open",
        "connection opened, 2 open",
        "connection ended, 1 open",
        "connection ended, 0 open",
    ]


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda one: type(one).__name__)
@pytest.mark.parametrize("key", ["", "blue-kez", "blue", "x" * 4096, "schlüssel"])
async def test_without_a_good_key_nothing_is_carried_out(request_: ClientMessage, key: str) -> None:
    async with serving(tcp_config(api_keys=KEYS), control_key="blue-key") as rig:
        client = await rig.connect()
        hello = client.wire.send_hello(api_key=key)
        client.write(hello + encode_frame(msgspec.msgpack.encode(request_), 2**16))
        assert (await client.error()).code == ErrorCode.UNAUTHENTICATED
        client = await rig.connect()
        client.write(encode_frame(msgspec.msgpack.encode(request_), 2**16))
        assert (await client.error()).code == ErrorCode.PROTOCOL_VIOLATION
        assert rig.loop.stats()["requests_total"] == 0
        await rig.assert_alive()


@pytest.mark.parametrize("key", ["blue-key", "red-key", "red-2"])
async def test_every_good_key_opens(key: str) -> None:
    async with serving(tcp_config(api_keys=KEYS), control_key="blue-key") as rig:
        client = await rig.client(key)
        assert (await client.generate()).ends


async def test_an_unix_socket_asks_for_the_key_too(tmp_path: Path) -> None:
    config = ServerConfig(binary_port=None, binary_uds=str(tmp_path / "s"), api_keys=KEYS)
    async with serving(config, control_key="red-key") as rig:
        client = await rig.connect()
        client.write(client.wire.send_hello())
        assert (await client.error()).code == ErrorCode.UNAUTHENTICATED


async def test_a_version_that_is_not_spoken_is_refused() -> None:
    async with serving() as rig:
        client = await rig.connect()
        client.wire.send_hello()
        hello = Hello("wkvm", 2, 3)
        client.write(encode_frame(msgspec.msgpack.encode(hello), 2**16))
        assert (await client.error()).code == ErrorCode.UNSUPPORTED_VERSION


async def test_two_tenants_do_not_reach_each_others_lanes() -> None:
    async with serving(tcp_config(api_keys=KEYS), control_key="blue-key") as rig:
        blue, red = await rig.client("blue-key"), await rig.client("red-key")
        blue.start(lane=7, max_tokens=10**6, credit=5)
        red.start(lane=7, max_tokens=10**6, credit=5)
        # red speaks of its own lane 7 and of a lane 8 that only blue has
        blue.start(lane=8, max_tokens=10**6)
        red.send(Cancel(7))
        red.write(encode_frame(msgspec.msgpack.encode(Cancel(8)), 2**16))
        answer = await red.answer(7)
        assert answer.ends[0].reason == EndReason.CANCELLED
        await red.generate()
        assert 7 in blue.wire.lanes
        assert 8 in blue.wire.lanes
        assert rig.server.n_requests == 2
        blue.send(Cancel(7), Cancel(8))
        answers = await blue.answers(7, 8)
        assert len(answers[7].ids[0]) <= 5


# --- keys ---------------------------------------------------------------------------------


def test_a_key_is_kept_as_its_digest_only() -> None:
    key = ApiKey.of("secret-key", "blue")
    assert key.digest == hashlib.sha256(b"secret-key").digest()
    assert "secret" not in repr(key)
    assert key.digest.hex() not in repr(ServerConfig(api_keys=(key,)))


def test_a_keys_file_holds_keys_and_digests() -> None:
    digest = hashlib.sha256(b"two").hexdigest()
    keys = parse_api_keys(f"# keys\n\nblue:one\nred:{digest}\nred:with:colon\n")
    ring = Keyring(keys)
    assert [ring.tenant_of(key) for key in ("one", "two", "with:colon")] == ["blue", "red", "red"]
    # a digest in the file is never a key
    assert ring.tenant_of(digest) is None


@pytest.mark.parametrize("rest", ["  -", " # of the laptop", "\t-"])
def test_what_follows_a_digest_does_not_make_a_key_of_it(rest: str) -> None:
    digest = hashlib.sha256(b"two").hexdigest()
    with pytest.raises(ConfigError, match="line 2: something follows") as caught:
        parse_api_keys(f"blue:one\nred:{digest}{rest}\n")
    assert digest not in str(caught.value)


def test_a_line_in_brackets_limits_the_keys_below_it() -> None:
    text = "a:one\n[requests=60 tokens=9 concurrent=4]\nb:two\nc:three\n[tokens=5]\nd:x\n[]\ne:y"
    assert [dict(key.limits) for key in parse_api_keys(text)] == [
        {},
        {"requests": 60, "tokens": 9, "concurrent": 4},
        {"requests": 60, "tokens": 9, "concurrent": 4},
        {"tokens": 5},
        {},
    ]


@pytest.mark.parametrize(
    "line",
    [
        "[requests=0]",
        "[requests=-1]",
        "[requests]",
        "[secret=1]",
        "[tokens=5",
        "[tokens=5 tokens=6]",
        "[tokens=1000000000000000]",
    ],
)
def test_what_is_no_limit_is_refused_by_its_line(line: str) -> None:
    with pytest.raises(ConfigError, match="line 2") as caught:
        parse_api_keys(f"a:one\n{line}\nb:two")
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "# none\n", "secret", "a/b:secret", ":secret", "blue:", "-x:secret"]
)
def test_a_bad_keys_file_is_refused_without_quoting_it(text: str) -> None:
    with pytest.raises(ConfigError, match=r"^api-keys-file: ") as caught:
        parse_api_keys(text)
    assert "secret" not in str(caught.value)


def test_a_key_that_no_client_could_send_is_refused() -> None:
    with pytest.raises(ConfigError, match="not UTF-8"):
        ApiKey.of("k\udcff")


def test_one_key_cannot_stand_for_two_tenants() -> None:
    with pytest.raises(ConfigError, match="same key"):
        ServerConfig(api_keys=parse_api_keys("blue:one\nred:one\n"))
    ServerConfig(api_keys=parse_api_keys("blue:one\nred:two\nblue:one\n"))


def test_a_key_is_compared_with_every_entry_and_in_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared = list[tuple[bytes, bytes]]()

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    for key, tenant in (("blue-key", "blue"), ("red-2", "red"), ("none", None)):
        compared.clear()
        assert Keyring(KEYS).tenant_of(key) == tenant
        digest = hashlib.sha256(key.encode()).digest()
        assert compared == [(digest, known.digest) for known in KEYS]


def test_the_source_compares_keys_in_no_other_way() -> None:
    """In Keyring, ``==``, ``in`` and dictionaries do not occur."""
    tree = ast.parse(Path(auth.__file__).read_text())
    (keyring,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == "Keyring"]
    assert not [n for n in ast.walk(keyring) if isinstance(n, ast.Compare | ast.Dict)]
    calls = [ast.unparse(n.func) for n in ast.walk(keyring) if isinstance(n, ast.Call)]
    assert "hmac.compare_digest" in calls


# --- limits on connections ------------------------------------------------------------------


async def test_a_connection_too_many_is_told_so() -> None:
    async with serving(tcp_config(max_connections=3)) as rig:
        first = await rig.client()
        await rig.client()
        refused = await rig.connect()
        error = await refused.error()
        assert error.code == ErrorCode.TOO_MANY_CONNECTIONS
        assert error.retryable
        await rig.assert_alive()
        await first.close()
        await rig.assert_idle(n_connections=2)
        await rig.client()


async def test_a_tenant_has_a_limit_of_its_own() -> None:
    config = tcp_config(api_keys=KEYS, max_connections_per_tenant=2)
    async with serving(config, control_key="blue-key") as rig:
        first = await rig.client("red-key")
        await rig.client("red-2")
        refused = await rig.connect()
        refused.write(refused.wire.send_hello(api_key="red-key"))
        assert (await refused.error()).code == ErrorCode.TOO_MANY_CONNECTIONS
        await rig.client("blue-key")
        await first.close()
        await rig.assert_idle(n_connections=3)
        await rig.client("red-key")


def test_without_files_for_others_there_is_no_room_for_a_connection() -> None:
    is_full = False
    counts = ConnectionCounts(2, 1, is_full=lambda: is_full)
    assert counts.open()
    is_full = True
    assert not counts.open()
    counts.close(None)
    assert counts.total == 0


def test_counts_return_to_nothing() -> None:
    counts = ConnectionCounts(2, 1)
    assert counts.open()
    assert counts.open()
    assert not counts.open()
    assert counts.assign("blue")
    assert not counts.assign("blue")
    counts.close("blue")
    counts.close(None)
    assert counts.total == 0
    assert counts.open()
    assert counts.assign("blue")
