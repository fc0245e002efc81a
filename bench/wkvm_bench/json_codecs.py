"""orjson against msgspec, for the JSON that the gateway reads and writes.

Both sides end with the same: bytes that mean the same, or a request whose types were checked.
orjson checks none, so what it reads goes through ``msgspec.convert``, as it would have to.
"""

import importlib.util
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import msgspec

from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.replies import Completion, CompletionChoice, Usage
from wkvm_bench.harness import Bar, BenchError, Comparison, alternate

BAR = Bar(1.0, at_least=False)
Operation: TypeAlias = Callable[[], object]

_TEXT = "A state has a fixed size, “whatever” was read.\n"


async def compare(*, smoke: bool, n_threads: int) -> list[Comparison]:
    """Run the benchmark. ``n_threads`` is not used: there is one."""
    del n_threads
    if importlib.util.find_spec("orjson") is None:
        raise BenchError("orjson, the peer, is not installed")
    n_seconds, n = (0.0, 1) if smoke else (0.02, 25)
    comparisons = list[Comparison]()
    for case, (of_msgspec, of_orjson) in _cases().items():
        if not _same(of_msgspec(), of_orjson()):
            raise BenchError(f"{case}: the two do not agree")
        samples = await alternate(_timed(of_msgspec, n_seconds), _timed(of_orjson, n_seconds), n)
        comparisons.append(Comparison(case, "msgspec", "orjson", "us", *samples, BAR))
    return comparisons


def _cases() -> dict[str, tuple[Operation, Operation]]:
    """What is measured, by name: msgspec's way and orjson's."""
    import orjson

    encoder = msgspec.json.Encoder()
    encode, dumps, loads = encoder.encode, orjson.dumps, orjson.loads
    decode = msgspec.json.Decoder(CompletionRequest).decode
    cases = dict[str, tuple[Operation, Operation]]()

    def checked(body: bytes) -> CompletionRequest:
        return msgspec.convert(loads(body), CompletionRequest)

    def add(case: str, of_msgspec: Operation, of_orjson: Operation) -> None:
        cases[case] = of_msgspec, of_orjson

    for n_chars in (4, 40, 400):
        text = (_TEXT * 10)[:n_chars]
        add(f"text of an event, {n_chars} characters", _call(encode, text), _call(dumps, text))
    reply = _reply(_TEXT)
    as_dict = msgspec.to_builtins(reply)
    add("event with all its fields", _call(encode, reply), _call(dumps, as_dict))
    long_reply = _reply(_TEXT * 2000)
    long_dict = msgspec.to_builtins(long_reply)
    add("reply, 100 kB of text", _call(encode, long_reply), _call(dumps, long_dict))
    body = encode(_body(_TEXT))
    add("body, small, checked", _call(decode, body), _call(checked, body))
    add("body, small, parsed alone", _call(msgspec.json.decode, body), _call(loads, body))
    long_body = encode(_body([(i * 40503) % 65536 for i in range(17_000)]))
    add("body, 100 kB of ids, checked", _call(decode, long_body), _call(checked, long_body))
    add(
        "body, 100 kB of ids, parsed alone",
        _call(msgspec.json.decode, long_body),
        _call(loads, long_body),
    )
    return cases


def _call(function: Callable[[Any], object], argument: object) -> Operation:
    return lambda: function(argument)


def _reply(text: str) -> Completion:
    choice = CompletionChoice(0, text, None, "length", None)
    usage = Usage.of([120], [256])
    return Completion(f"cmpl-{'0' * 32}", "text_completion", 1_790_000_000, "null", [choice], usage)


def _body(prompt: str | list[int]) -> dict[str, object]:
    return {
        "model": "null",
        "prompt": prompt,
        "max_tokens": 256,
        "temperature": 0.7,
        "top_p": 0.9,
        "stop": ["\n\nUser:"],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def _same(one: object, other: object) -> bool:
    if isinstance(one, bytes) and isinstance(other, bytes):
        return bool(msgspec.json.decode(one) == msgspec.json.decode(other))
    return one == other


def _timed(operation: Operation, seconds: float) -> Callable[[], Awaitable[float]]:
    """A side: microseconds of one operation, over as many as take so long."""
    n = 1
    while seconds and (taken := _time(operation, n)) < seconds:
        n = max(n * 2, int(n * seconds / max(taken, 1e-6)))

    async def side() -> float:
        return _time(operation, n) / n * 1e6

    return side


def _time(operation: Operation, n: int) -> float:
    start = time.perf_counter()
    for _ in range(n):
        operation()
    return time.perf_counter() - start
