"""No number that is none gets into a state, by any parameter of a mutation or by a file.

What is refused leaves every version as it was, and what is taken is a state whose numbers are all
finite. That a row of a step which is not finite ends alone, is in ``tests/states/test_traps.py``.
"""

import base64
import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
from msgspec import inspect
from safetensors.numpy import load
from wkvm_client import aio
from wkvm_client.errors import StateNotFiniteError
from wkvm_protocol import messages as wire
from wkvm_protocol.errors import ErrorCode

from tests.threats.frames import Line, payload_of
from tests.threats.walk import Place, Samples, places
from tests.threats.world import NUMBERS, World
from wkvm.state.format import NO_DIGEST, decode_header, digest_of, encode_header, header_bytes
from wkvm.state.operations import BUILTIN, Operation

pytestmark = pytest.mark.asyncio(loop_scope="module")

SAMPLES = Samples(
    by_name={
        "deviation": 0.1,
        "factor": 0.5,
        "layers": [0],
        "max_abs": 1.0,
        "seed": 1,
        "weight": 0.5,
    },
    inside={},
)
NOT_FINITE = ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e400"]
"""As texts: JSON has no such numbers, and clients that send them there are."""
LARGE = ["1e308", "-1e308", "1.7976931348623157e308", "3.5e38"]
SMALL = ["5e-324", "2.2250738585072014e-308", "1e-310", "1e-45"]
"""Of them all are finite in float64, and none is a normal number of float32."""
PLACEHOLDER = "@number@"
OF_REFUSAL = {ErrorCode.INVALID_PARAMETER, ErrorCode.STATE_NOT_FINITE}


@dataclass(frozen=True)
class Change:
    """A mutation with a number, as text, at a place of its parameters."""

    operation: Operation[Any]
    place: Place
    number: str

    @property
    def parameters(self) -> str:
        """The JSON of the parameters."""
        info = inspect.type_info(self.operation.parameters)
        assert isinstance(info, inspect.StructType)
        put: Any = self.place.wrap(PLACEHOLDER)
        if self.place.field == "weights":
            put = [1.0, PLACEHOLDER]
        given = SAMPLES.of_struct(info, **{self.place.field: put})
        return json.dumps(given).replace(f'"{PLACEHOLDER}"', self.number)

    @property
    def others(self) -> list[str]:
        return ["beta"] * (self.operation.min_parents - 1)

    @property
    def body(self) -> str:
        """The JSON of a body, with the parameters in it as they are."""
        rest = {"operation": self.operation.name, "others": self.others, "save_as": self.target}
        return f'{{"parameters": {self.parameters}, {json.dumps(rest)[1:]}'

    @property
    def target(self) -> str:
        return f"changed-{self.operation.name}-{next(NUMBERS)}"

    def __str__(self) -> str:
        return f"{self.operation.name} {self.place} = {self.number}"


def changes(numbers: list[str]) -> Iterator[Change]:
    for operation in BUILTIN:
        for place in places(operation.parameters, SAMPLES):
            if isinstance(place.kind, inspect.FloatType):
                for number in numbers:
                    yield Change(operation, place, number)


async def everything(world: World) -> Any:
    """What states there are, and which bytes they have."""
    told = (await world.ask("GET", "/v1/states", params={"limit": "256"})).body
    return [(one["name"], one["version"], one["content_id"]) for one in told["data"]]


async def is_finite(world: World, name: str) -> None:
    async with world.http.get(f"/v1/states/{name}/export") as response:
        tensors = load(await response.read())
    assert all(np.isfinite(tensor).all() for tensor in tensors.values())
    body = {"ids": [1], "max_tokens": 2, "state": name}
    assert (await world.ask("POST", "/v1/generate", json=body)).status == 200


async def test_the_walk_finds_the_numbers_of_the_operations() -> None:
    found = {(one.operation.name, one.place.field) for one in changes(["1"])}
    assert found >= {
        ("decay", "factor"), ("scale", "factor"), ("blend", "weights"), ("add", "weight"),
        ("subtract", "weight"), ("noise", "deviation"), ("clip", "max_abs"), ("clip", "max_norm"),
    }  # fmt: skip


async def test_no_number_that_is_none_is_taken_by_a_mutation_over_http(world: World) -> None:
    await world.fill()
    before = await everything(world)
    for change in changes([*NOT_FINITE, *LARGE]):
        answer = await world.ask("POST", "/v1/states/alpha/mutate", data=change.body.encode())
        assert answer.status in (400, 422), f"{change}: {answer}"
        await world.check()
    assert await everything(world) == before


async def test_no_number_that_is_none_is_taken_by_a_mutation(world: World) -> None:
    await world.fill()
    before = await everything(world)
    line = Line(world)
    for change in changes([*NOT_FINITE, *LARGE]):
        payload = payload_of(
            wire.StateMutate,
            operation=change.operation.name,
            states=["alpha", *change.others],
            parameters=change.parameters,
        )
        outcome = await line.outcome(wire.StateMutate, payload)
        assert isinstance(outcome.closing, wire.Failed), f"{change}: {outcome}"
        assert outcome.closing.code in OF_REFUSAL, f"{change}: {outcome}"
        await world.check()
    line.close()
    assert await everything(world) == before


async def test_a_number_that_is_all_but_zero_makes_a_finite_state(world: World) -> None:
    await world.fill()
    n_taken = 0
    for change in changes(SMALL):
        answer = await world.ask("POST", "/v1/states/alpha/mutate", data=change.body.encode())
        assert answer.status in (201, 400), f"{change}: {answer}"
        if answer.status == 201:
            n_taken += 1
            await is_finite(world, answer.body["name"])
        await world.check()
    assert n_taken > len(SMALL)


async def file_with(world: World, number: float) -> bytes:
    """The file of a state in which one number is another one, with the digest that it needs."""
    async with world.http.get("/v1/states/alpha/export") as response:
        file = await response.read()
    n_header = header_bytes(file)
    told = json.loads(file[8:n_header])
    header, data = decode_header(file[:n_header]), bytearray(file[n_header:])
    at = told["rwkv7.wkv"]["data_offsets"][0]
    data[at : at + 4] = struct.pack("<f", number)
    parts = (header.identity, header.layout, header.carried)
    blank = encode_header(*parts, NO_DIGEST, header.history)
    digest = digest_of(blank, [memoryview(bytes(data))])
    return encode_header(*parts, digest, header.history) + data


BAD = [float("nan"), float("inf"), -float("inf"), struct.unpack("<f", b"\1\0\x80\x7f")[0]]


@pytest.mark.parametrize("number", BAD)
async def test_a_file_with_a_number_that_is_none_is_refused(world: World, number: float) -> None:
    await world.fill()
    before = await everything(world)
    file = await file_with(world, number)
    answer = await world.ask("PUT", "/v1/states/poisoned/import", data=file)
    assert (answer.status, answer.body["error"]["code"]) == (422, "state_not_finite")
    body = {"ids": [1], "max_tokens": 1, "state_bytes": base64.b64encode(file).decode()}
    answer = await world.ask("POST", "/v1/generate", json=body)
    assert (answer.status, answer.body["error"]["code"]) == (422, "state_not_finite")
    attach = partial(world.running.server.attach, is_trusted=False)
    async with aio.over(attach) as client:
        with pytest.raises(StateNotFiniteError):
            await client.states.import_from("poisoned", file)
        stream = await client.generate([1], max_tokens=1, state_bytes=file)
        with pytest.raises(StateNotFiniteError):
            await stream.completion()
    await world.check()
    assert await everything(world) == before


@pytest.mark.parametrize("number", [1e-45, -1e-45, 1e-39, 3.4028234663852886e38, -0.0])
async def test_a_file_with_an_extreme_number_comes_back_as_it_was(
    world: World, number: float
) -> None:
    await world.fill()
    file, name = await file_with(world, number), f"extreme{next(NUMBERS)}"
    assert (await world.ask("PUT", f"/v1/states/{name}/import", data=file)).status == 201
    async with world.http.get(f"/v1/states/{name}/export") as response:
        again = load(await response.read())
    assert again["rwkv7.wkv"].tobytes() == load(file)["rwkv7.wkv"].tobytes()
    await is_finite(world, name)
    await world.check()


async def test_what_is_poisoned_changes_nothing_for_seven_that_run(world: World) -> None:
    await world.fill()
    file = await file_with(world, BAD[0])
    body = {"ids": [1], "max_tokens": 1, "state_bytes": base64.b64encode(file).decode()}
    async with world.beside_others():
        for change in changes(["NaN", "1e308"]):
            assert (await world.ask("POST", "/v1/generate", json=body)).status == 422
            answer = await world.ask("POST", "/v1/states/alpha/mutate", data=change.body.encode())
            assert answer.status in (400, 422), f"{change}: {answer}"
