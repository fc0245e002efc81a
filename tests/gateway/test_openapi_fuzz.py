"""Whatever the served document allows, and what it does not: no answer is a failure of the server.

schemathesis makes requests from the document. Left to itself it hardly gets beyond the first check
of a body: so it is told which names exist, and gives few optional fields at once.
"""

import random
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import requests
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Unsatisfiable

from tests.cli.conftest import KEY, started, wkvm_command
from wkvm.gateway.routes import ROUTES

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import schemathesis
    from schemathesis import GenerationMode
    from schemathesis.checks import CHECKS, load_all_checks

TIMEOUT_S = 60.0
AUTH = {"Authorization": f"Bearer {KEY}"}
FULL = frozenset({503, 507, 529})
"""That there is no room now is no fault; 529 is Anthropic's word for 503."""
KEPT = frozenset({"input", "max_completion_tokens", "max_output_tokens", "max_tokens", "messages"})
KEPT |= {"ids", "model", "names", "prompt"}
MAX_OPTIONAL = 4
FEW_TOKENS = {"type": "integer", "minimum": -1, "maximum": 9}
MAKES_OTHERS_GO = {("DELETE", "/v1/states/{ref}"), ("DELETE", "/v1/sessions/{id}")}
"""Asked last of all."""


@dataclass
class Target:
    """A server with something of everything, and what it says of itself."""

    url: str
    http: requests.Session
    document: dict[str, Any] = field(default_factory=dict[str, Any])
    names: dict[str, list[Any]] = field(default_factory=dict[str, list[Any]])

    def make(self, path: str, body: Any) -> Any:
        response = self.http.post(self.url + path, json=body, headers=AUTH, timeout=TIMEOUT_S)
        assert response.status_code < 300, response.text
        return response.json()

    def ask(self, path: str) -> Any:
        return self.http.get(self.url + path, headers=AUTH, timeout=TIMEOUT_S).json()


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    folder = tmp_path_factory.mktemp("fuzz")
    limits = ("--request-timeout-s", "60", "--max-body-bytes", "1000000", "--slots", "16")
    places = ("--port", "0", "--binary-port", "none", "--binary-uds", str(folder / "b"))
    command = wkvm_command("serve", *places, "--state-dir", str(folder / "s"), *limits)
    with started(command) as server, requests.Session() as http:
        found = Target(server.url(), http)
        fill(found)
        yield found
        assert server.end() == 0


def fill(target: Target) -> None:
    """Make something of everything, and tell the document of it."""
    model = target.ask("/v1/models")["data"][0]["id"]
    for name in ("alpha", "beta"):
        target.make("/v1/states", {"name": name, "ids": [1, 2, 3]})
    target.make("/v1/sessions", {"name": "gamma", "ids": [1, 2, 3]})
    short = {"model": model, "input": "hi", "max_output_tokens": 4}
    response = target.make("/v1/responses", short)["id"]
    conversation = target.make("/v1/conversations", {})["id"]
    submitted = target.make("/v1/submit", {"ids": [1, 2], "max_tokens": 3})["id"]
    states = ["alpha", "beta", "alpha@1", "gamma", "alpha@2", "beta@9", "no/pe"]
    target.names = {
        "/v1/states": states,
        "/v1/sessions": ["gamma", "alpha", "nobody"],
        "/v1/responses": [response, "resp_none"],
        "/v1/conversations": [conversation, "conv_none"],
        "/v1/status": [submitted, "gen-none"],
        "/v1/models": [model, "none"],
    }
    hints: dict[str, Any] = {
        "model": {"const": model},
        "state": {"enum": [*states[:4], None]},
        "other": {"enum": states},
        "previous_response_id": {"enum": [response, None]},
        "conversation": {"enum": [conversation, None]},
        "max_tokens": FEW_TOKENS,
        "max_completion_tokens": FEW_TOKENS,
        "max_output_tokens": FEW_TOKENS,
        "ids": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4100}},
        "operation": {"enum": ["average", "blend", "noise", "reset", "scale", "none"]},
    }
    target.document = target.ask("/openapi.json")
    for path, methods in target.document["paths"].items():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                names = next((n for top, n in target.names.items() if path.startswith(top)), None)
                if parameter["in"] == "path" and names is not None:
                    parameter["schema"] = {"enum": names}
    for name in bodies_of(target.document):
        schema = target.document["components"]["schemas"][name]
        properties, required = schema.get("properties", {}), schema.get("required", ())
        for key in list(properties):
            if key in hints:
                properties[key] = hints[key]
            elif key not in required and "Any JSON" in properties[key].get("description", ""):
                del properties[key]  # known and not supported: nothing of it is taken


def bodies_of(document: dict[str, Any]) -> set[str]:
    """The names of the schemas of bodies."""
    found = set[str]()
    for methods in document["paths"].values():
        for operation in methods.values():
            content = operation.get("requestBody", {}).get("content", {})
            schema = content.get("application/json", {}).get("schema", {})
            for one in schema.get("anyOf", [schema]):
                if "$ref" in one:
                    found.add(one["$ref"].rpartition("/")[2])
    return found


def thinned(case: Any, document: dict[str, Any], n: int) -> None:
    """Leave a request few of its optional fields: others than the last time."""
    chance = random.Random(n)
    if isinstance(case.body, dict):
        content = document["paths"][case.path][case.method.lower()]["requestBody"]["content"]
        schema = next(iter(content.values()))["schema"]
        if "$ref" in schema:
            schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        kept = KEPT | set(schema.get("required", ()))
        others = sorted(case.body.keys() - kept)
        kept |= set(chance.sample(others, min(len(others), chance.randrange(MAX_OPTIONAL))))
        case.body = {key: value for key, value in case.body.items() if key in kept}
    if case.query and len(case.query) > 1:
        case.query = {key: value for key, value in case.query.items() if chance.random() < 0.5}


@dataclass
class Attack:
    """Asks for everything, and keeps what went wrong.

    Attributes:
        n_examples: for each method of each path, of requests that fit, and of such as do not.
        part, n_parts: of all that there is to be asked for.
    """

    target: Target
    n_examples: int
    chance: int
    part: int = 0
    n_parts: int = 1
    n: int = 0
    faults: list[str] = field(default_factory=list[str])

    def run(self) -> list[str]:
        load_all_checks()
        schema = schemathesis.openapi.from_dict(self.target.document)
        schema.config.update(base_url=self.target.url)
        operations: list[Any] = [result.ok() for result in schema.get_all_operations()]  # type: ignore[union-attr]
        operations.sort(key=lambda one: (one.method.upper(), one.path) in MAKES_OTHERS_GO)
        for operation in operations[self.part :: self.n_parts]:
            if operation.path != "/v1/ws":  # a protocol of its own
                for mode in GenerationMode:
                    self.ask_for(operation, mode)
        assert self.n > len(ROUTES) // self.n_parts
        return self.faults

    def ask_for(self, operation: Any, mode: GenerationMode) -> None:
        fits = mode is GenerationMode.POSITIVE

        @seed(self.chance)
        @settings(
            max_examples=self.n_examples,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: Any) -> None:
            self.ask(case, fits=fits)

        try:
            ask()
        except Unsatisfiable:
            assert not fits  # of what has no parameters, nothing can be wrong

    def ask(self, case: Any, *, fits: bool) -> None:
        self.n += 1
        if fits:
            thinned(case, self.target.document, self.n)
        response = case.call(session=self.target.http, headers=AUTH, timeout=TIMEOUT_S)
        asked = (
            f"{response.status_code} {response.content[:200]!r}: {case.as_curl_command()[:2000]}"
        )
        if response.status_code >= 500 and response.status_code not in FULL:
            self.faults.append(asked)
        if fits and response.status_code < 300:
            conforms = CHECKS.get_one("response_schema_conformance")
            try:
                case.validate_response(response, checks=[conforms], headers=AUTH)
            except BaseExceptionGroup as error:
                self.faults.append(f"{error.exceptions[0]}: {asked}")


@pytest.mark.long
def test_no_request_makes_the_server_fail(target: Target) -> None:
    assert Attack(target, n_examples=2, chance=1).run() == []


N_PARTS = 16
"""Each of them takes less than the time after which a test is taken for stuck."""


@pytest.mark.slow
@pytest.mark.parametrize("part", range(N_PARTS))
@pytest.mark.parametrize("chance", [2, 3])
def test_no_request_of_many_makes_the_server_fail(target: Target, chance: int, part: int) -> None:
    attack = Attack(target, n_examples=40, chance=chance, part=part, n_parts=N_PARTS)
    assert attack.run() == []
