"""``/v1/states/{ref}/text``: what a state has read and written."""

import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gateway.harness import ANNA, BERT, KEYS, Running
from tests.gateway.stateful import ask, make, states_running
from wkvm.gateway.offload import LONG_TEXT
from wkvm.gateway.states.reading import MAX_CUTS, PIECE, LogReader, decoded
from wkvm.gateway.text.tokenizer import ByteTokenizer


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with states_running(tmp_path) as running:
        yield running


async def test_a_state_tells_all_that_it_read_its_pending_token_included(
    running: Running,
) -> None:
    await make(running, text="Once upon a time")
    status, told = await ask(running, "GET", "/v1/states/tale/text")
    assert (status, told["state"], told["texts"]) == (200, "tale@1", ["Once upon a time"])
    assert bytes(told["ids"]) == b"Once upon a time"
    assert (told["start"], told["end"], told["n_tokens"]) == (0, 16, 16)


async def test_an_older_version_tells_what_it_had_read_then(running: Running) -> None:
    await make(running, text="Once")
    await make(running, text=" more", state="tale")
    assert (await ask(running, "GET", "/v1/states/tale@1/text"))[1]["texts"] == ["Once"]
    assert (await ask(running, "GET", "/v1/states/tale/text"))[1]["texts"] == ["Once more"]


async def test_the_text_is_cut_where_it_is_asked_for_and_nowhere_else(running: Running) -> None:
    await make(running, text="Once more")
    path = "/v1/states/tale/text?cut=7&cut=4&cut=4&cut=0&cut=99"
    assert (await ask(running, "GET", path))[1]["texts"] == ["Once", " mo", "re"]


async def test_a_part_is_told_alone_and_no_more_than_there_is(running: Running) -> None:
    await make(running, text="Once more")
    for query, texts in (
        ("start=2&end=6", ["ce m"]),
        ("start=8", ["e"]),
        ("start=8&end=2", [""]),
        ("start=5&end=99", ["more"]),
        ("start=99", [""]),
    ):
        _, told = await ask(running, "GET", f"/v1/states/tale/text?{query}")
        assert told["texts"] == texts, query


async def test_what_the_query_has_wrong_is_named(running: Running) -> None:
    await make(running)
    for query, field in (("start=-1", "start"), ("cut=x", "cut"), ("to=3", "to")):
        status, told = await ask(running, "GET", f"/v1/states/tale/text?{query}")
        assert (status, told["error"]["param"]) == (400, field), query


@pytest.mark.parametrize(("n", "status"), [(MAX_CUTS, 200), (MAX_CUTS + 1, 400)])
async def test_as_many_cuts_as_are_promised_fit_however_far_they_are(
    running: Running, n: int, status: int
) -> None:
    await make(running)
    query = "&".join(f"cut={100_000_000 + at}" for at in range(n))
    found, told = await ask(running, "GET", f"/v1/states/tale/text?{query}")
    assert (found, told.get("error", {}).get("param")) == (status, "cut" if n > MAX_CUTS else None)


async def test_what_is_anothers_is_answered_like_what_never_was(tmp_path: Path) -> None:
    async with states_running(tmp_path, keys=KEYS) as running:
        await make(running, headers=ANNA)
        mine = await ask(running, "GET", "/v1/states/tale/text", **BERT)
        nobodys = await ask(running, "GET", "/v1/states/none/text", **BERT)
        assert (mine[0], nobodys[0]) == (404, 404)
        assert (
            mine[1]["error"]["message"].replace("tale", "none") == (nobodys[1]["error"]["message"])
        )


FILE = (
    b'{"__metadata__":{"wkvm.carried":"{\\"pending\\":[7,8]}"},'
    b'"wkvm.token_ids":{"data_offsets":[5,21]}}'
)
IDS = [1, 2, 3, 4, 7, 8]


@given(st.integers(0, 7), st.integers(0, 7), st.lists(st.integers(0, 200), max_size=6))
def test_however_a_file_comes_its_ids_are_those_asked_for(
    start: int, end: int, cuts: list[int]
) -> None:
    ids = b"".join(one.to_bytes(4, "little") for one in IDS[:4])
    data = len(FILE).to_bytes(8, "little") + FILE + b"bytes" + ids
    reader, places = LogReader(start, end), [0, *sorted(cuts), len(data)]
    for one, other in itertools.pairwise(places):
        reader.feed(data[one:other])
    assert reader.ids() == IDS[start:end]


@pytest.mark.parametrize("end", [b"", b"\xe2", b"\xff"])
def test_a_long_text_is_made_in_pieces_that_cut_no_character_and_others_get_on(
    end: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = list[float]()
    monkeypatch.setattr(time, "sleep", pauses.append)
    data = b"x" + "\u20ac".encode() * LONG_TEXT + end
    ids, tokenizer = list(data), ByteTokenizer()
    assert decoded(tokenizer, ids) == data.decode("utf-8", "replace")
    assert len(pauses) == -(-len(ids) // PIECE)
    short = data[: LONG_TEXT - 1]
    assert decoded(tokenizer, list(short)) == short.decode("utf-8", "replace")
    assert len(pauses) == -(-len(ids) // PIECE), "what is made on the loop does not wait"
