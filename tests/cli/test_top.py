"""``wkvm top`` on whole servers, through textual's own pilot; and what it shows, as text."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from wkvm_client import aio
from wkvm_client.errors import ConnectFailedError
from wkvm_client.states import StateInfo
from wkvm_client.watching import StateNews, StateTable, StatsNews

from tests.client.keeping import running
from wkvm.cli.top import feed
from wkvm.cli.top.feed import news_of
from wkvm.cli.top.figures import SORTS, Readings, ago, details, duration, gauges, rows, size

textual = pytest.importorskip("textual")
from textual.widgets import DataTable, Input, Static  # noqa: E402

from wkvm.cli.top.app import Ask, Tell, TopApp  # noqa: E402


async def seen(pilot: Any, fact: Callable[[], bool]) -> None:
    """Until the screen says so."""
    async with asyncio.timeout(60):
        while not fact():
            await pilot.pause(0.02)


def names(app: TopApp) -> list[str]:
    table = app.query_one(DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


def status(app: TopApp) -> str:
    return str(app.query_one("#status", Static).render())


def strips(app: TopApp) -> Any:
    """The lines of the screen, as they go to a terminal."""
    return app.screen._compositor.render_strips()


@asynccontextmanager
async def screen(tmp_path: Path) -> AsyncIterator[tuple[TopApp, Any, aio.Client]]:
    """The screen of a server on a unix socket, with two states; and another client of it."""
    async with running(tmp_path / "server") as address, aio.connect(address) as other:
        await other.states.create("alpha", [1, 2, 3], tags={"kind": "first"})
        await other.states.create("beta", [4])
        app = TopApp(partial(aio.connect, address), address=address, interval_s=0.1)
        async with app.run_test(size=(120, 30)) as pilot:
            await seen(pilot, lambda: set(names(app)) == {"alpha", "beta"})
            yield app, pilot, other


async def test_states_that_others_make_appear_and_those_that_they_delete_go(
    tmp_path: Path,
) -> None:
    async with screen(tmp_path) as (app, pilot, other):
        await other.states.fork("alpha", ["gamma"])
        await seen(pilot, lambda: "gamma" in names(app))
        await other.states.delete("beta")
        await seen(pilot, lambda: set(names(app)) == {"alpha", "gamma"})
        await seen(pilot, lambda: "slots 0/8" in str(app.query_one("#gauges", Static).render()))


async def test_keys_fork_hibernate_resume_and_delete_the_chosen_state(tmp_path: Path) -> None:
    async with screen(tmp_path) as (app, pilot, other):
        await pilot.press("s")  # by name
        await seen(pilot, lambda: names(app) == ["alpha", "beta"])
        app.query_one(DataTable).move_cursor(row=0)
        await pilot.press("f")
        await seen(pilot, lambda: app.screen.query(Input).first().value == "alpha-2")
        await pilot.press("enter")
        await seen(pilot, lambda: "alpha-2" in names(app))
        app.query_one(DataTable).move_cursor(row=0)
        await pilot.press("h")
        await seen(pilot, lambda: status(app) == "hibernate alpha: done")
        assert (await other.states.get("alpha")).tier == "disk"
        await pilot.press("r")
        await seen(pilot, lambda: status(app) == "resume alpha: done")
        assert (await other.states.get("alpha")).tier == "host"
        await pilot.press("d")
        await seen(pilot, lambda: bool(app.screen.query(Input)))
        await pilot.press(*"alpha", "enter")
        await seen(pilot, lambda: names(app) == ["alpha-2", "beta"])


async def test_a_state_whose_name_was_not_said_is_not_deleted(tmp_path: Path) -> None:
    async with screen(tmp_path) as (app, pilot, _):
        await pilot.press("d")
        await seen(pilot, lambda: bool(app.screen.query(Input)))
        await pilot.press(*"no", "enter")
        await seen(pilot, lambda: "was not deleted" in status(app))
        assert set(names(app)) == {"alpha", "beta"}


async def test_what_the_server_refuses_is_shown_with_its_name(tmp_path: Path) -> None:
    async with screen(tmp_path) as (app, pilot, _):
        await pilot.press("f")
        await seen(pilot, lambda: bool(app.screen.query(Input)))
        app.screen.query(Input).first().value = "beta" if app.chosen == "alpha" else "alpha"
        await pilot.press("enter")
        await seen(pilot, lambda: "StateExistsError" in status(app))


async def test_a_filter_finds_names_tags_and_tiers_and_enter_shows_a_log(tmp_path: Path) -> None:
    async with screen(tmp_path) as (app, pilot, _):
        await pilot.press("slash")
        await seen(pilot, lambda: bool(app.screen.query(Input)))
        await pilot.press(*"kind:first", "enter")
        await seen(pilot, lambda: names(app) == ["alpha"])
        app.query_one(DataTable).move_cursor(row=0)
        await pilot.press("enter")
        await seen(pilot, lambda: isinstance(app.screen, Tell))
        assert "alpha@1" in str(app.screen.query_one(Static).render())
        await pilot.press("x")
        await seen(pilot, lambda: not isinstance(app.screen, Tell))


async def test_what_a_server_says_draws_nothing_but_its_text(tmp_path: Path) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\x9b31m\x08\r\n[red]\u202eevil"
    async with screen(tmp_path) as (app, pilot, _):
        said = state(evil, tags={evil: evil}, operation=evil)
        news = StateNews(states=(said,), used_at={}, gone=(), restarts=False, is_complete=True)
        app.states.apply(news)
        await pilot.press("s")  # draws, by name
        await seen(pilot, lambda: any("owned" in name for name in names(app)))
        app.say(evil)
        for shown in (None, Ask(evil, evil), Tell(details(said, [(evil, evil, evil)]))):
            if shown is not None:
                app.push_screen(shown)
            await pilot.pause()
            drawn = "".join(one.text for strip in strips(app) for one in strip)
            assert "owned" in drawn
            assert re.findall(r"[\x00-\x1f\x7f-\x9f\u202e]", drawn) == []


async def test_a_server_that_comes_back_is_shown_again(tmp_path: Path) -> None:
    async with (
        running(tmp_path / "a") as first,
        running(tmp_path / "b", digest="ee" * 32) as second,
    ):
        places = [first]
        app = TopApp(lambda: aio.connect(places[-1]), address=first, interval_s=0.1)
        async with aio.connect(second) as other, app.run_test() as pilot:
            await other.states.create("there", [1])
            await seen(pilot, lambda: app.states.is_complete)
            places.append(second)
            assert app._client is not None
            await app._client.aclose()
            await seen(pilot, lambda: names(app) == ["there"])


async def test_where_nobody_answers_the_error_is_told_and_the_screen_is_left() -> None:
    address = "unix:///nowhere/at/all"
    app = TopApp(partial(aio.connect, address), address=address)
    async with app.run_test() as pilot:
        await seen(pilot, lambda: app.fatal is not None)
    assert isinstance(app.fatal, ConnectFailedError)


async def test_a_server_that_does_not_tell_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path / "server") as address, aio.connect(address) as client:
        await client.states.create("alpha", [1])
        link = client.connections.link
        assert link is not None
        assert link.core.hello is not None
        monkeypatch.setattr(type(client), "server", _Without(client.server))
        told = await first_two(client)
        assert isinstance(told[0], StatsNews)
        assert isinstance(told[1], StateNews)
        assert ([one.name for one in told[1].states], told[1].is_complete) == (["alpha"], True)
        await client.states.create("beta", [1])
        monkeypatch.setattr(feed, "PAGE", 1)
        monkeypatch.setattr(feed, "MAX_ASKED", 1)
        told = await first_two(client)
        assert not told[1].is_complete  # there are more than are asked for


async def first_two(client: aio.Client) -> list[Any]:
    """The first counters, and the first states."""
    told = list[Any]()
    async for news in news_of(client, "", 0.1):
        told.append(news)
        if len(told) == 2:
            break
    return told


class _Without:
    """What a server says of itself that has no feature but ``states``."""

    features = ("states",)

    def __init__(self, server: Any) -> None:
        self.model = server.model


# --- text ---------------------------------------------------------------------------------


FACTS: dict[str, Any] = {
    "version": 1,
    "head": 1,
    "n_versions": 1,
    "ack": "durable",
    "tier": "host",
    "content_id": "",
    "n_bytes": 2048,
    "n_computed": 3,
    "n_pending": 1,
    "operation": "create",
    "parents": (),
    "tail": (),
    "tags": {},
    "created_at": 0.0,
    "updated_at": 0.0,
    "expires_at": None,
    "model_digest": "",
    "layout_fingerprint": "",
    "tokenizer_digest": "",
}


def state(name: str, **fields: Any) -> StateInfo:
    return StateInfo(name=name, **{**FACTS, **fields})


def table_of(*states: StateInfo) -> StateTable:
    table = StateTable()
    table.apply(StateNews(states=states, used_at={}, gone=(), restarts=True, is_complete=True))
    return table


def test_rates_and_quantiles_are_of_the_last_seconds() -> None:
    readings = Readings()
    readings.add(StatsNews(at_s=0.0, values={"output_tokens_total": 1000}))
    assert readings.rate("output_tokens_total") == 0
    for at in range(1, 31):
        values = {
            "output_tokens_total": 1000 + 10 * at,
            "step_us_le_100": 0,
            "step_us_le_250": 9 * at,
            "step_us_le_500": 10 * at,
            "step_us_count": 10 * at,
        }
        readings.add(StatsNews(at_s=float(at), values=values))
    assert readings.rate("output_tokens_total") == pytest.approx(10)
    assert (readings.quantile("step_us", 0.5), readings.quantile("step_us", 0.99)) == (250, 500)
    assert readings.quantile("inter_token_us", 0.5) is None
    readings.add(StatsNews(at_s=1000.0, values={}))
    readings.add(StatsNews(at_s=1020.0, values={}))
    assert readings.rate("output_tokens_total") == 0
    assert readings.quantile("step_us", 0.5) is None


def test_the_gauges_count_states_and_bytes_by_tier() -> None:
    table = table_of(state("a"), state("b", tier="disk"), state("c", tier="disk"))
    _, second = gauges(Readings(), table)
    assert second == "states 3   host 1 (2.0 KiB)   disk 2 (4.0 KiB)"


def test_rows_are_sorted_filtered_and_no_more_than_fit() -> None:
    table = table_of(
        state("b", updated_at=5.0, n_bytes=10),
        state("a", updated_at=9.0, tier="disk"),
        state("c", n_computed=50, tags={"team": "red"}, ack="visible"),
    )
    found = {
        order: [one.name for one in rows(table, order=order, wanted="", most=9, now=10)[0]]
        for order in SORTS
    }
    assert found == {
        "used": ["a", "b", "c"],
        "name": ["a", "b", "c"],
        "tokens": ["c", "a", "b"],
        "size": ["a", "c", "b"],
        "tier": ["b", "c", "a"],
    }
    some, n = rows(table, order="name", wanted="", most=2, now=10)
    assert ([one.name for one in some], n) == (["a", "b"], 3)
    (only,), _ = rows(table, order="name", wanted="red", most=9, now=10)
    assert only.cells == ("c", "1", "host*", "51", "2.0 KiB", "10 s", "create", "team:red")


def test_numbers_are_as_people_read_them() -> None:
    assert [size(n) for n in (5, 2048, 3 * 2**30, 5 * 2**50)] == [
        "5 B",
        "2.0 KiB",
        "3.0 GiB",
        "5120.0 TiB",
    ]
    assert [duration(us) for us in (5, 2500, 1_500_000)] == ["5 us", "2.5 ms", "1.5 s"]
    assert [ago(s) for s in (-1, 59, 60, 7200, 200_000)] == ["0 s", "59 s", "1 min", "2 h", "2 d"]
