"""The load over HTTP, against a server that sends bytes that a test says."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from wkvm_bench import http_stream
from wkvm_bench.figures import Streamed
from wkvm_bench.harness import BenchError
from wkvm_bench.load_openai import OpenAiSource, connected

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str | None, **more: object) -> bytes:
    choices = [] if text is None else [{"index": 0, "text": text}]
    return chunk(b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n")


def usage(n_ids: int) -> bytes:
    return event(None, usage={"prompt_tokens": 4, "completion_tokens": n_ids})


DONE = chunk(b"data: [DONE]\n\n") + chunk(b"")


HANG_UP = b""


class Scripted:
    """Answers each request with the next list of writes, and keeps what was asked."""

    def __init__(self, *answers: list[bytes]) -> None:
        self.answers = list(answers)
        self.pause_s = 0.01
        self.asked: list[tuple[bytes, dict[str, object]]] = []
        self.serving: list[asyncio.Task[None]] = []

    def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.serving.append(asyncio.create_task(self._serve(reader, writer)))

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
            body = await reader.readexactly(int(length or 0))
            self.asked.append((head, json.loads(body or b"{}")))
            answer = self.answers.pop(0)
            with contextlib.suppress(ConnectionError):
                for data in answer:
                    writer.write(data)
                    await writer.drain()
                    await asyncio.sleep(self.pause_s)
            if HANG_UP in answer or not answer:
                break
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


@asynccontextmanager
async def source_of(
    folder: Path,
    server: Scripted,
    *,
    model: str | None = "m",
    vocab_size: int | None = 100,
    timeout_s: float = 60.0,
    is_chat: bool = False,
    ignore_eos: bool = True,
    counts_events: bool = False,
) -> AsyncIterator[OpenAiSource]:
    path = str(folder / "http.sock")
    listening = await asyncio.start_unix_server(server.connected, path)
    try:
        async with connected(
            f"unix://{path}",
            model=model,
            vocab_size=vocab_size,
            api_key="secret",
            temperature=0.5,
            top_p=0.25,
            timeout_s=timeout_s,
            is_chat=is_chat,
            ignore_eos=ignore_eos,
            counts_events=counts_events,
        ) as source:
            yield source
    finally:
        listening.close()
        await asyncio.gather(*server.serving)


@pytest.mark.timed(0.1)
async def test_events_with_text_have_their_times_wherever_reads_are_cut(tmp_path: Path) -> None:
    whole = HEAD + event("a") + event("b") + event("") + usage(3) + DONE
    cut = whole.index(b"data: ", whole.index(b"data: ") + 1) + 3
    server = Scripted([whole[:cut], whole[cut:-3], whole[-3:]], [whole])
    server.pause_s = 0.1
    async with source_of(tmp_path, server) as source:
        results = [await source.stream([7, 8], 3), await source.stream([9], 3)]
    for result in results:
        assert (result.error, result.n_ids, result.n_prompt) == (None, 3, 4)
        assert len(result.arrivals) == 2
    first, second = results[0].arrivals
    assert second - first > 0.005
    (head, body), (_, again) = server.asked
    assert b"\r\nAuthorization: Bearer secret\r\n" in head
    assert body["prompt"] == [7, 8]
    assert again["prompt"] == [9]
    assert (body["model"], body["max_tokens"], body["ignore_eos"]) == ("m", 3, True)
    assert (body["temperature"], body["top_p"], body["stream"]) == (0.5, 0.25, True)


async def test_what_goes_wrong_is_named_and_the_next_request_is_sent(tmp_path: Path) -> None:
    refusal = b"HTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\n"
    why = b'{"error": {"message": "model: there is none"}}'
    of_fastapi = b'{"detail": "no such field"}' + b" " * 10
    refused = b"HTTP/1.1 422 No\r\nContent-Length: %d\r\n\r\n" % len(of_fastapi)
    no_model = b"HTTP/1.1 404 Not Found\r\nContent-Length: %d\r\n\r\n" % len(why)
    failure = chunk(b'data: {"error": {"type": "server_error"}}\n\n')
    late = chunk(b'data: {"error": {"type": "server_error", "code": "timeout"}}\n\n')
    odd = chunk(b'data: {"error": "broken"}\n\n')
    server = Scripted(
        [refusal, b"{}"],
        [no_model, why],
        [refused, of_fastapi],
        [HEAD + event("a") + failure + DONE],
        [HEAD + event("a") + late + DONE],
        [HEAD + event("a") + odd + DONE],
        [HEAD + event("a") + usage(1) + DONE],
        [HEAD + event("a") + DONE],
        [],
        [HEAD + event("a") + usage(3) + DONE],
    )
    results = list[Streamed]()
    async with source_of(tmp_path, server) as source:
        for _ in range(10):
            results.append(await source.stream([1], 3))
    assert [result.error for result in results] == [
        "HTTP 429",
        "HTTP 404 (model: there is none)",
        "HTTP 422 (no such field)",
        "error: server_error",
        "error: server_error, timeout",
        "error: unnamed",
        "short output",
        "no usage in the answer (see --count-events)",
        "connection lost",
        None,
    ]


@pytest.mark.parametrize("count", ["3", None, -1, 2.5, [3]])
async def test_counts_that_are_none_are_named(tmp_path: Path, count: object) -> None:
    wrong = event(None, usage={"prompt_tokens": count, "completion_tokens": 3})
    server = Scripted([HEAD + event("a") + wrong + DONE])
    async with source_of(tmp_path, server) as source:
        assert (await source.stream([1], 3)).error == "unreadable events"


async def test_an_absurd_length_is_waited_for_and_no_more(tmp_path: Path) -> None:
    server = Scripted([b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n"])
    async with source_of(tmp_path, server, timeout_s=0.1) as source:
        assert (await source.stream([1], 3)).error == "timeout"


@pytest.mark.parametrize("url", ["http://127.0.0.1:99999", "http://[::1", "ftp://x", "x"])
async def test_what_is_no_address_is_an_error_of_the_benchmark(url: str) -> None:
    with pytest.raises(BenchError, match="is neither"):
        async with connected(
            url,
            model=None,
            vocab_size=None,
            api_key=None,
            temperature=1.0,
            top_p=1.0,
            timeout_s=1.0,
        ):
            pass


async def test_prompts_are_words_where_no_vocabulary_is_known(tmp_path: Path) -> None:
    names = json.dumps({"data": [{"id": "the-model"}]}).encode()
    models = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(names), names)
    server = Scripted([models], [HEAD + event("a") + usage(3) + DONE])
    async with source_of(tmp_path, server, model=None, vocab_size=None) as source:
        result = await source.stream([0, 1, 12], 3)
    assert result.error is None
    _, body = server.asked[1]
    assert body["prompt"] == "time year people"
    assert body["model"] == "the-model"


async def test_a_server_that_refuses_to_name_models_says_why(tmp_path: Path) -> None:
    why = b'{"error": {"message": "a key is needed"}}'
    refusal = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: %d\r\n\r\n%s" % (len(why), why)
    with pytest.raises(BenchError, match="a key is needed"):
        async with source_of(tmp_path, Scripted([refusal]), model=None):
            pass


async def test_a_connection_that_cannot_be_had_is_told_from_one_that_is_lost(
    tmp_path: Path,
) -> None:
    async with source_of(tmp_path, Scripted()) as source:
        (tmp_path / "http.sock").unlink()
        result = await source.stream([1], 3)
    assert result.error == f"no connection (unix://{tmp_path}/http.sock: No such file or directory)"


async def test_no_server_is_an_error_of_the_benchmark(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"none\.sock"):
        async with connected(
            f"unix://{tmp_path}/none.sock",
            model=None,
            vocab_size=None,
            api_key=None,
            temperature=1.0,
            top_p=1.0,
            timeout_s=1.0,
        ):
            pass


def delta(**fields: object) -> bytes:
    choice = {"index": 0, "delta": {"role": "assistant", **fields}, "finish_reason": None}
    return chunk(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")


async def test_a_chat_is_one_message_of_words_and_each_delta_with_text_counts(
    tmp_path: Path,
) -> None:
    first = delta(content="")
    brings = delta(content="a") + delta(reasoning_content="b") + delta(reasoning="c")
    brings += delta(tool_calls=[{"index": 0, "function": {"arguments": "{"}}])
    server = Scripted([HEAD + first + brings + delta(content=None) + usage(4) + DONE])
    async with source_of(tmp_path, server, is_chat=True) as source:
        result = await source.stream([0, 1], 4)
    assert (result.error, result.n_ids, len(result.arrivals)) == (None, 4, 4)
    ((head, body),) = server.asked
    assert head.startswith(b"POST /v1/chat/completions HTTP/1.1\r\n")
    assert body["messages"] == [{"role": "user", "content": "time year"}]
    assert "prompt" not in body
    assert body["stream_options"] == {"include_usage": True}


async def test_text_that_looks_like_an_event_is_none(tmp_path: Path) -> None:
    server = Scripted([HEAD + event("data: x\n\ndata: y") + event("b") + usage(2) + DONE])
    async with source_of(tmp_path, server) as source:
        result = await source.stream([1], 2)
    assert (result.error, len(result.arrivals)) == (None, 2)


@pytest.mark.timed(0.1)
async def test_chunks_that_cut_events_anywhere_change_nothing_but_their_times(
    tmp_path: Path,
) -> None:
    events = b"".join(
        b"data: " + json.dumps({"choices": [{"text": text}]}).encode() + b"\r\n\r\n"
        for text in ("a", "b")
    )
    end = b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}\n\n'
    cut = events.index(b"data: ", 1) + 2
    server = Scripted([HEAD + chunk(events[:cut]), chunk(events[cut:] + end) + DONE])
    server.pause_s = 0.1
    async with source_of(tmp_path, server) as source:
        result = await source.stream([1], 2)
    assert (result.error, result.n_ids) == (None, 2)
    first, second = result.arrivals
    assert second - first > 0.005


@pytest.mark.parametrize("length", [True, False])
async def test_a_body_without_chunks_is_as_long_as_it_says_or_until_the_server_hangs_up(
    length: bool, tmp_path: Path
) -> None:
    body = b'data: {"choices": [{"text": "a"}]}\n\n'
    body += b'data: {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}\n\n'
    said = b"Content-Length: %d\r\n" % len(body) if length else b""
    head = b"HTTP/1.1 200 OK\r\n" + said + b"\r\n"
    server = Scripted([head, body] if length else [head, body, HANG_UP])
    async with source_of(tmp_path, server) as source:
        result = await source.stream([1], 1)
    assert (result.error, result.n_ids) == (None, 1)


@pytest.mark.parametrize("body", [b"x\r\n", b"5\r\nab", b"-1\r\n\r\n"])
async def test_chunks_that_are_none_are_named(body: bytes, tmp_path: Path) -> None:
    server = Scripted([HEAD + body + b"\n0\r\n\r\n"])
    async with source_of(tmp_path, server) as source:
        assert (await source.stream([1], 1)).error in {
            "unreadable events",
            "no usage in the answer (see --count-events)",
        }


async def test_an_output_may_end_early_only_where_that_was_asked_for(tmp_path: Path) -> None:
    short, long = (HEAD + event("a") + usage(n) + DONE for n in (1, 4))
    server = Scripted([short], [long])
    async with source_of(tmp_path, server, ignore_eos=False) as source:
        results = [await source.stream([1], 3), await source.stream([1], 3)]
    assert [one.error for one in results] == [None, "long output"]
    assert "ignore_eos" not in server.asked[0][1]


async def test_events_are_counted_where_there_is_no_usage_if_that_was_asked_for(
    tmp_path: Path,
) -> None:
    server = Scripted([HEAD + event("a") + event("") + event("b") + DONE])
    async with source_of(tmp_path, server, counts_events=True) as source:
        result = await source.stream([1, 2, 3], 9)
    assert (result.error, result.n_ids, result.n_prompt) == (None, 2, 3)
    assert "stream_options" not in server.asked[0][1]


@pytest.mark.parametrize(
    ("url", "line"),
    [
        ("http://h:1", b"POST /v1/completions "),
        ("http://h:1/v1", b"POST /v1/completions "),
        ("http://h:1/llm/v1/", b"POST /llm/v1/completions "),
        ("unix:///x/v1", b"POST /v1/completions "),
    ],
)
def test_a_path_before_v1_is_kept(url: str, line: bytes) -> None:
    source = OpenAiSource(
        url,
        model="m",
        vocab_size=None,
        api_key=None,
        temperature=1.0,
        top_p=1.0,
        timeout_s=1.0,
    )
    assert source._request("POST", "/v1/completions", b"").startswith(line)


@pytest.mark.parametrize(
    "body",
    [
        b"ffffffffffffffffffff\r\nabc\r\n",
        b"1_0\r\n" + 16 * b"a" + b"\r\n",
        b"-5\r\nabc\r\n",
        b"50\r\nabc\r\n",
        chunk(b'data: {"error": ' + 100_000 * b"[" + b"\n\n"),
    ],
    ids=["huge", "underscore", "negative", "short", "deep"],
)
async def test_chunks_and_events_that_lie_are_unreadable(body: bytes, tmp_path: Path) -> None:
    async with source_of(tmp_path, Scripted([HEAD + body + b"\n0\r\n\r\n"])) as source:
        assert (await source.stream([1], 1)).error == "unreadable events"


@pytest.mark.parametrize(
    "answer",
    [[b"HTTP/1.1 200 OK\r\n", *20 * [b"X: y" * 50 + b"\r\n"]], [HEAD, *20 * [event("a")]]],
    ids=["head", "body"],
)
async def test_an_answer_without_an_end_is_left(
    answer: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_stream, "MAX_HEAD_BYTES", 1000)
    monkeypatch.setattr(http_stream, "MAX_ANSWER_BYTES", 300)
    server = Scripted(answer)
    server.pause_s = 0.0
    async with source_of(tmp_path, server) as source:
        assert (await source.stream([1], 1)).error == "no end of the answer"


async def test_what_a_server_says_reaches_no_terminal_as_a_command(tmp_path: Path) -> None:
    said = json.dumps({"error": {"message": "\x1b[2J\n", "type": "\x1b]0;x\x07" + 1000 * "y"}})
    refusal = f"HTTP/1.1 500 X\r\nContent-Length: {len(said)}\r\n\r\n{said}".encode()
    event = HEAD + chunk(b"data: " + said.encode() + b"\n\n") + DONE
    async with source_of(tmp_path, Scripted([refusal], [event])) as source:
        assert (await source.stream([1], 1)).error == r"HTTP 500 (\x1b[2J\x0a)"
        error = (await source.stream([1], 1)).error
    assert error is not None
    assert error.startswith(r"error: \x1b]0;x\x07yy")
    assert len(error) < 400
