"""What a key may ask for in a minute and at once, of one process and of several."""

import contextlib
from pathlib import Path

import pytest

from tests.gateway.harness import ANNA, BERT, KEYS, TIMEOUT_S, gateway_running, until_stats
from wkvm.gateway.config import GatewayConfig, Limits
from wkvm.gateway.door.limits import N_ROWS, TABLE_BYTES, KeyLimits, Ledger
from wkvm.gateway.errors import SettingError
from wkvm.gateway.failures import HttpError

ONE, OTHER = b"1" * 32, b"2" * 32
BODY = {"ids": [1, 2, 3], "max_tokens": 5, "ignore_eos": True}
COMPLETION = {"prompt": "abc", "max_tokens": 5, "ignore_eos": True}


class Clock:
    """A clock that goes where it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(ledger: Ledger, key: bytes, limits: Limits) -> HttpError:
    with pytest.raises(HttpError) as caught:
        ledger.enter(key, limits)
    assert caught.value.status == 429
    assert caught.value.code == "rate_limit_exceeded"
    return caught.value


def test_as_many_requests_as_a_minute_has_are_let_in_and_no_more() -> None:
    ledger, limits = Ledger(clock=Clock()), Limits(requests=3)
    left = [ledger.enter(ONE, limits).requests for _ in range(3)]
    assert left == [2, 1, 0]
    refusal(ledger, ONE, limits)


def test_what_is_refused_says_when_it_would_be_let_in() -> None:
    clock = Clock()
    ledger, limits = Ledger(clock=clock), Limits(requests=6)
    for _ in range(6):
        ledger.enter(ONE, limits)
    after_s = refusal(ledger, ONE, limits).retry_after_s
    assert after_s == pytest.approx(10)
    clock.now += 9.9
    refusal(ledger, ONE, limits)
    clock.now += 0.1001
    ledger.enter(ONE, limits)


def test_what_was_not_used_is_not_saved_beyond_a_minute() -> None:
    clock = Clock()
    ledger, limits = Ledger(clock=clock), Limits(requests=2)
    ledger.enter(ONE, limits)
    clock.now += 3600
    assert ledger.enter(ONE, limits).requests == 1


def test_tokens_that_are_owed_are_waited_for() -> None:
    clock = Clock()
    ledger, limits = Ledger(clock=clock), Limits(tokens=60)
    assert ledger.enter(ONE, limits).tokens == 60
    ledger.spend(ONE, limits, 90)
    assert refusal(ledger, ONE, limits).retry_after_s == pytest.approx(31)
    clock.now += 31
    assert ledger.enter(ONE, limits).tokens == 1


def test_no_more_requests_are_open_at_once_than_may_be() -> None:
    ledger, limits = Ledger(clock=Clock()), Limits(concurrent=2)
    ledger.enter(ONE, limits)
    ledger.enter(ONE, limits)
    refusal(ledger, ONE, limits)
    ledger.leave(ONE)
    ledger.enter(ONE, limits)


def test_one_key_takes_nothing_from_another() -> None:
    ledger, limits = Ledger(clock=Clock()), Limits(requests=1)
    ledger.enter(ONE, limits)
    ledger.enter(OTHER, limits)
    refusal(ledger, ONE, limits)


def test_a_refused_request_uses_up_nothing() -> None:
    clock = Clock()
    ledger, limits = Ledger(clock=clock), Limits(requests=1, concurrent=1)
    ledger.enter(ONE, limits)
    for _ in range(10):
        refusal(ledger, ONE, limits)
    ledger.leave(ONE)
    clock.now += 60
    ledger.enter(ONE, limits)


def test_more_keys_than_the_table_has_rows_are_limited_all_the_same() -> None:
    clock = Clock()
    ledger, limits = Ledger(clock=clock), Limits(requests=1)
    for n in range(N_ROWS + 500):
        clock.now += 0.001
        key = (n * 2654435761 % 2**32).to_bytes(4) + bytes(28)
        ledger.enter(key, limits)
        refusal(ledger, key, limits)
        ledger.leave(key)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table"
    path.write_bytes(bytes(TABLE_BYTES))
    return path


def test_processes_that_share_a_table_share_what_a_key_has_left(table: Path) -> None:
    clock = Clock()
    first, second = Ledger(table, index=0, clock=clock), Ledger(table, index=1, clock=clock)
    limits = Limits(requests=2, concurrent=2)
    first.enter(ONE, limits)
    second.enter(ONE, limits)
    refusal(first, ONE, limits)
    refusal(second, ONE, limits)


def test_what_a_process_had_open_is_forgotten_when_it_is_started_anew(table: Path) -> None:
    limits = Limits(concurrent=2)
    first, second = Ledger(table, index=0), Ledger(table, index=1)
    first.enter(ONE, limits)
    second.enter(ONE, limits)
    again = Ledger(table, index=0)
    again.enter(ONE, limits)
    refusal(again, ONE, limits)


@pytest.mark.parametrize("limits", [Limits(requests=0), Limits(tokens=-1), Limits(concurrent=0)])
def test_a_limit_of_nothing_is_no_setting(limits: Limits) -> None:
    with pytest.raises(SettingError, match="limit-"):
        GatewayConfig(limits=limits)


async def test_answers_say_what_is_left_and_one_too_many_is_refused() -> None:
    config = GatewayConfig(limits=Limits(requests=2, tokens=1000))
    async with gateway_running(keys=KEYS, config=config) as running:
        for left in ("1", "0"):
            async with running.http.post("/v1/generate", json=BODY, headers=ANNA) as response:
                assert response.status == 200
                assert response.headers["X-RateLimit-Limit-Requests"] == "2"
                assert response.headers["X-RateLimit-Remaining-Requests"] == left
                assert response.headers["X-RateLimit-Reset-Requests"].endswith("s")
        assert response.headers["X-RateLimit-Remaining-Tokens"] == "992"
        async with running.http.post("/v1/generate", json=BODY, headers=ANNA) as response:
            assert response.status == 429
            assert int(response.headers["Retry-After"]) in range(25, 31)
            assert (await response.json())["error"]["code"] == "rate_limit_exceeded"
        async with running.http.post("/v1/generate", json=BODY, headers=BERT) as response:
            assert response.status == 200


@pytest.mark.parametrize(
    ("path", "body", "cost"),
    [
        ("/v1/generate", BODY, 8),
        ("/v1/stream", BODY, 8),
        ("/v1/generate", {**BODY, "n": 3}, 18),
        ("/v1/score", {"ids": [1, 2, 3]}, 3),
        ("/v1/completions", COMPLETION, 8),
        ("/v1/completions", {**COMPLETION, "n": 2}, 13),
        ("/v1/completions", {**COMPLETION, "prompt": ["abc", "de"], "stream": True}, 15),
        ("/v1/completions", {**COMPLETION, "model": "none"}, 0),
    ],
)
async def test_a_key_pays_for_the_tokens_that_a_request_has_cost(
    path: str, body: dict[str, object], cost: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent = list[int]()
    monkeypatch.setattr(KeyLimits, "spend", lambda _self, _key, n: spent.append(n))
    async with (
        gateway_running() as running,
        running.http.post(path, json={"model": running.gateway.model, **body}) as one,
    ):
        await one.read()
        assert (one.status == 200) == (cost > 0)
    assert sum(spent) == cost


async def test_a_submitted_request_costs_its_key_tokens_once_it_is_over() -> None:
    config = GatewayConfig(limits=Limits(tokens=100))
    async with gateway_running(config=config) as running:
        body = {**BODY, "max_tokens": 200}
        async with running.http.post("/v1/submit", json=body) as response:
            assert response.status == 202
        await until_stats(running, n_running=0, n_queued=0)
        async with running.http.post("/v1/generate", json=BODY) as response:
            assert response.status == 429


async def test_requests_that_are_open_count_until_their_clients_leave() -> None:
    config = GatewayConfig(limits=Limits(concurrent=1))
    body = {**BODY, "max_tokens": 1_000_000}
    async with gateway_running(config=config) as running:
        for _ in range(2):
            async with running.http.post("/v1/stream", json=body) as response:
                await response.content.readline()
                async with running.http.post("/v1/generate", json=BODY) as refused:
                    assert refused.status == 429
                response.close()
            await until_stats(running, n_running=0)
            await running.door.drained(TIMEOUT_S)


async def test_questions_are_not_limited_nor_is_cancelling() -> None:
    config = GatewayConfig(limits=Limits(requests=1))
    async with gateway_running(config=config) as running:
        async with running.http.post("/v1/generate", json=BODY) as response:
            assert response.status == 200
        for _ in range(3):
            async with running.http.get("/v1/models") as response:
                assert response.status == 200
                assert "X-RateLimit-Limit-Requests" not in response.headers
            async with running.http.post("/v1/cancel", json={"id": "x"}) as response:
                assert response.status == 404


async def test_without_limits_no_answer_speaks_of_any() -> None:
    async with (
        gateway_running() as running,
        running.http.post("/v1/generate", json=BODY) as response,
    ):
        assert not any(name.lower().startswith("x-ratelimit") for name in response.headers)


async def test_a_key_with_limits_has_no_way_around_them() -> None:
    config = GatewayConfig(limits=Limits(requests=9))
    async with gateway_running(config=config) as running:
        with contextlib.suppress(Exception):
            await running.http.ws_connect("/v1/ws", protocols=("wkvm.v1",))
        async with running.http.get("/v1/ws") as response:
            assert response.status == 403
            assert (await response.json())["error"]["code"] == "key_has_limits"


async def test_a_key_may_have_limits_of_its_own() -> None:
    config = GatewayConfig(
        limits=Limits(requests=1),
        key_limits={KEYS[0].digest.hex(): Limits(requests=5)},
    )
    async with gateway_running(keys=KEYS, config=config) as running:
        for headers, n in ((ANNA, "5"), (BERT, "1")):
            async with running.http.post("/v1/generate", json=BODY, headers=headers) as response:
                assert response.headers["X-RateLimit-Limit-Requests"] == n
