"""POST /v1/embeddings: texts or ids to vectors, by the model that is served."""

import asyncio
import math
from array import array
from base64 import b64encode
from collections.abc import Sequence
from typing import Literal

import msgspec
from aiohttp import web
from wkvm_client.results import Pooling
from wkvm_protocol.messages import pack_floats

from wkvm.gateway.calls import Call, json_response
from wkvm.gateway.failures import OPENAI_NAMES, HttpError, invalid
from wkvm.gateway.fields import Integer
from wkvm.gateway.policy import EMBEDDINGS
from wkvm.gateway.prompts import Prompt, PromptField, n_kept, read_prompts

MAX_INPUTS = 2048
"""Texts of one request."""
MAX_NUMBERS = 2**22
"""Numbers of one answer, all vectors together."""
MAX_AT_ONCE = 64
"""Texts of one request that the engine has at a time, where it has as many slots."""


class EmbeddingBody(msgspec.Struct, kw_only=True):
    """The body of a request for embeddings.

    Attributes:
        input: a text, a list of texts, ids, or a list of lists of ids.
        pooling: what a vector is made of; see ``wkvm_client.results.Pooling``.
        dimensions: only so many numbers of each, the first ones.
        normalize: whether vectors have the length 1, which is the default.
        truncate_prompt_tokens: of each text only the last so many ids count; -1 takes as many
            as the engine does.
        user: taken and not used.
    """

    model: str | None = None
    input: PromptField | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Integer | None = None
    pooling: Pooling | None = None
    normalize: bool | None = None
    truncate_prompt_tokens: Integer | None = None
    priority: Integer | None = None
    timeout_s: float | None = None
    user: str | None = None


class Embedding(msgspec.Struct):
    """One vector: numbers, or in base64 their bytes, as little-endian float32."""

    index: int
    embedding: list[float] | str
    object: str = "embedding"


class EmbeddingUsage(msgspec.Struct):
    """The ids of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embeddings(msgspec.Struct):
    """The answer."""

    model: str
    data: list[Embedding]
    usage: EmbeddingUsage
    object: str = "list"


async def embeddings(call: Call) -> web.Response:
    """Answer with a vector for each text."""
    gateway = call.gateway
    body = await call.body(EmbeddingBody, EMBEDDINGS)
    call.names = {**OPENAI_NAMES, "prompt": "input"}
    if body.model is None:
        raise invalid("model", "is required")
    gateway.check_model(body.model)
    if body.dimensions is not None and body.dimensions < 1:
        raise invalid("dimensions", f"{body.dimensions} is not positive")
    max_ids = n_kept(body.truncate_prompt_tokens, gateway.max_model_len)
    prompts = await gateway.offload.run(
        lambda: read_prompts(
            body.input,
            gateway.texts.tokenizer,
            max_prompts=MAX_INPUTS,
            max_ids=max_ids,
            field="input",
        ),
        size=call.n_held,
    )
    data = await _embed_all(call, body, prompts)
    n_ids = sum(len(prompt.ids) for prompt in prompts)
    answer = Embeddings(gateway.model, data, EmbeddingUsage(n_ids, n_ids))
    return json_response(msgspec.json.encode(answer))


async def _embed_all(call: Call, body: EmbeddingBody, prompts: Sequence[Prompt]) -> list[Embedding]:
    """The vectors of all texts; some of them at a time, beside whatever else runs.

    Raises:
        ClientError, HttpError: one of them failed; the others were cancelled.
    """
    client = call.client
    waiting = iter(enumerate(prompts))
    data = dict[int, Embedding]()

    async def work() -> None:
        for index, prompt in waiting:
            vector = await client.embed(
                prompt.ids,
                pooling=body.pooling or "last",
                timeout_s=body.timeout_s,
                priority=body.priority or 0,
            )
            call.absorbs(len(prompt.ids))
            vector = shaped(vector, body.dimensions, normalize=body.normalize is not False)
            if len(vector) * len(prompts) > MAX_NUMBERS:
                why = f"{len(prompts)} vectors of {len(vector)} numbers are more than {MAX_NUMBERS}"
                raise HttpError(413, why, param="input", code="request_too_large")
            data[index] = Embedding(index, _written(vector, body.encoding_format))

    n_open = min(max(client.server.n_slots, 1), MAX_AT_ONCE, len(prompts))
    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(n_open):
                group.create_task(work())
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [data[index] for index in range(len(prompts))]


def shaped(vector: list[float], dimensions: int | None, *, normalize: bool) -> list[float]:
    """The first numbers of a vector, made as long as 1.

    Args:
        dimensions: how many; None for all.

    Raises:
        HttpError: 400; there are not so many.
    """
    if dimensions is not None:
        if dimensions > len(vector):
            raise invalid(
                "dimensions", f"{dimensions} is more than this pooling has, {len(vector)}"
            )
        vector = vector[:dimensions]
    if not normalize:
        return vector
    length = math.hypot(*vector)
    return [number / length for number in vector] if length else vector


def _written(vector: list[float], form: str | None) -> list[float] | str:
    if form == "base64":
        return b64encode(pack_floats(vector)).decode()
    return list(array("f", vector))  # the same numbers in both forms
