"""Requests with grammars through a server, up to what a client is told."""

import json
import re

import pytest
from wkvm_protocol.errors import ErrorCode
from wkvm_protocol.messages import EndReason, GenerateConstrained, Sampling, pack_ids

from tests.fakes import FakeModel, fake_continuation
from tests.server.harness import Answer, RawClient, Rig, serving
from wkvm.core.config import EngineConfig
from wkvm.core.grammar import MAX_GRAMMAR_BYTES
from wkvm.engine.engine import Engine
from wkvm.engine.grammars import GrammarCompiler

EOS = 255
BYTES = [bytes([i]) for i in range(255)]


def engine() -> Engine:
    model = FakeModel(256, eos_ids=(EOS,))
    compiler = GrammarCompiler(BYTES, vocab_size=256)
    return Engine(model, EngineConfig(n_slots=8), grammars=compiler)


async def dial(rig: Rig) -> RawClient:
    client = await rig.connect()
    hello = await client.hello(features=["grammar", "unheard-of"])
    assert hello.features == ("grammar",)
    return client


async def ask(client: RawClient, kind: str, source: str, **options: object) -> Answer:
    sampling = Sampling(**{"seed": 1, **options})  # type: ignore[arg-type]
    lane = client.wire.new_request_id()
    client.send(GenerateConstrained(lane, pack_ids([1, 2, 3]), kind, source, sampling))
    return await client.answer(lane)


async def test_all_choices_follow_the_grammar_and_end() -> None:
    async with serving(engine=engine(), control_key=None) as rig:
        client = await dial(rig)
        wanted = {
            "type": "object",
            "properties": {"city": {"enum": ["Rom", "Bonn"]}, "days": {"type": "integer"}},
            "required": ["city", "days"],
            "additionalProperties": False,
        }
        answer = await ask(client, "json_schema", json.dumps(wanted), n=5, max_tokens=2000)
        assert answer.failed is None
        for choice in range(5):
            value = json.loads(bytes(answer.ids[choice]))
            assert value["city"] in {"Rom", "Bonn"}
            assert type(value["days"]) is int
            end = answer.ends[choice]
            assert (end.reason, end.stop_id) == (EndReason.STOP, None)
            assert end.n_output == len(answer.ids[choice])
        await rig.assert_idle()


async def test_others_on_the_connection_get_what_they_get_without_it() -> None:
    async with serving(engine=engine(), control_key=None) as rig:
        client = await dial(rig)
        lane = client.start((5, 6), max_tokens=30, ignore_eos=True)
        constrained = client.wire.new_request_id()
        request = GenerateConstrained(constrained, pack_ids([1]), "regex", "[a-z]{12}")
        client.send(request)
        answers = await client.answers(lane, constrained)
        assert answers[lane].ids == {0: fake_continuation((5, 6), 30, 256)}
        assert re.fullmatch(b"[a-z]{12}", bytes(answers[constrained].ids[0]))


@pytest.mark.parametrize(
    ("kind", "source", "said"),
    [
        ("regex", "(", "unclosed group"),
        ("json_schema", "no", "not a JSON schema"),
        ("lark", "start: nope", "nope"),
        ("gbnf", "root ::= x", "gbnf"),
        ("regex", "a" * (MAX_GRAMMAR_BYTES + 1), "65,536 bytes"),
        ("regex", "é" * (MAX_GRAMMAR_BYTES // 2) + "a", "65,536 bytes"),
    ],
)
async def test_a_wrong_grammar_fails_its_lane_and_no_more(
    kind: str, source: str, said: str
) -> None:
    async with serving(engine=engine(), control_key=None) as rig:
        client = await dial(rig)
        answer = await ask(client, kind, source, n=3)
        assert answer.failed is not None
        assert answer.failed.code == ErrorCode.INVALID_PARAMETER
        assert answer.failed.field == "grammar"
        assert not answer.failed.retryable
        assert said in answer.failed.message
        answer = await ask(client, "regex", "ok")
        assert bytes(answer.ids[0]) == b"ok"
        await rig.assert_idle()


async def test_a_grammar_as_long_as_may_be_is_taken() -> None:
    async with serving(engine=engine(), control_key=None) as rig:
        client = await dial(rig)
        source = "# ".ljust(MAX_GRAMMAR_BYTES - len('\nstart: "ok"')) + '\nstart: "ok"'
        assert len(source) == MAX_GRAMMAR_BYTES
        source = source.replace("#", "//", 1).replace("  ", " ", 1)
        assert len(source) == MAX_GRAMMAR_BYTES
        answer = await ask(client, "lark", source)
        assert answer.failed is None
        assert bytes(answer.ids[0]) == b"ok"


async def test_a_client_that_leaves_meanwhile_leaves_nothing_behind() -> None:
    async with serving(engine=engine(), control_key=None) as rig:
        client = await dial(rig)
        lane = client.wire.new_request_id()
        sampling = Sampling(n=8, max_tokens=10**6, ignore_eos=True)
        client.send(GenerateConstrained(lane, pack_ids([1]), "regex", "a*", sampling))
        client.abort()
        await rig.assert_idle(n_connections=0)


async def test_a_server_whose_engine_takes_no_grammars_agrees_to_none() -> None:
    async with serving() as rig:
        client = await rig.connect()
        assert (await client.hello(features=["grammar"])).features == ()
