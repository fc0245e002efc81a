"""What the routes of llama.cpp's server take."""

import uuid
from typing import TypeAlias

import msgspec

from wkvm.gateway.chat.messages import Message
from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.failures import invalid
from wkvm.gateway.fields import Integer
from wkvm.gateway.policy import Policy, Unsupported
from wkvm.gateway.schemas import Schema
from wkvm.gateway.structured import StructuredOutputs
from wkvm.gateway.text import Tokenizer

Part: TypeAlias = str | int
PromptField: TypeAlias = str | list[Part | list[Part]]
"""A text; ids and texts in a row, which are one prompt; or a list of prompts."""

DEFAULT_N_PREDICT = -1


class CompletionBody(msgspec.Struct, kw_only=True):
    """The body of ``POST /completion``. What becomes of other fields, the policy says.

    Attributes:
        n_predict: the limit of the output; -1 and -2 are the server's own.
        id_slot: the conversation to go on with, if the prompt begins with all of it; -1 for none.
        n_probs: how many of the most likely ids are told at each position.
        return_tokens: whether ids are told.
        cache_prompt: whether it may go on from what other requests have computed of its prompt.
    """

    prompt: PromptField | None = None
    model: str | None = None
    stream: bool = False
    n_predict: Integer | None = None
    max_tokens: Integer | None = None
    temperature: float | None = None
    top_k: Integer | None = None
    top_p: float | None = None
    min_p: float | None = None
    repeat_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    seed: int | None = None
    stop: list[str] | str | None = None
    ignore_eos: bool | None = None
    logit_bias: list[tuple[int | str, float | bool]] | dict[str, float] | None = None
    json_schema: Schema | None = None
    id_slot: Integer = -1
    n_probs: Integer = 0
    return_tokens: bool = False
    cache_prompt: bool = True

    @property
    def limit_name(self) -> str:
        """The field that says how long the output may be: the first of two, if both are there."""
        has_other = self.n_predict is None and self.max_tokens is not None
        return "max_tokens" if has_other else "n_predict"

    def to_completion(self, tokenizer: Tokenizer) -> CompletionRequest:
        """The same as a completion of OpenAI's interface.

        Raises:
            HttpError: 400; it makes none.
        """
        limits = {"n_predict": self.n_predict, "max_tokens": self.max_tokens}
        n_predict = limits[self.limit_name]
        if n_predict is None:
            n_predict = DEFAULT_N_PREDICT
        if n_predict < -2:
            raise invalid(self.limit_name, f"{n_predict} is neither a limit nor -1 nor -2")
        outputs = None if self.json_schema is None else StructuredOutputs(json=self.json_schema)
        return CompletionRequest(
            stream=self.stream,
            max_tokens=None if n_predict < 0 else n_predict,
            temperature=self.temperature,
            top_k=None if self.top_k is None else max(self.top_k, 0),
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repeat_penalty,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            seed=None if self.seed == -1 else self.seed,
            stop=self.stop or None,
            ignore_eos=self.ignore_eos,
            logit_bias=self._biases(tokenizer),
            structured_outputs=outputs,
            logprobs=self.n_probs if self.n_probs else None,
            cache_salt=None if self.cache_prompt else uuid.uuid4().hex,
        )

    def prompts(self, tokenizer: Tokenizer) -> list[list[int]]:
        """The ids of all prompts. The names of special tokens in texts stand for these tokens.

        Raises:
            HttpError: 400; there is none.
        """
        if self.prompt is None:
            raise invalid("prompt", "is required")
        return [_ids(one, tokenizer) for one in _several(self.prompt)]

    def _biases(self, tokenizer: Tokenizer) -> dict[str, float] | None:
        if self.logit_bias is None or isinstance(self.logit_bias, dict):
            return self.logit_bias
        biases = dict[str, float]()
        for what, bias in self.logit_bias:
            if isinstance(bias, bool):
                raise invalid("logit_bias", "a number is needed: true and false are not supported")
            ids = [what] if isinstance(what, int) else tokenizer.encode(what)
            for token_id in ids:
                biases[str(token_id)] = float(bias)
        return biases


def _several(prompt: PromptField) -> list[str | list[Part]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "an empty list")
    parts = [one for one in prompt if not isinstance(one, list)]
    if len(parts) == len(prompt) and any(isinstance(one, int) for one in parts):
        return [parts]
    several = list[str | list[Part]]()
    for one in prompt:
        if isinstance(one, int):
            raise invalid("prompt", "a list of prompts holds texts and lists")
        several.append(one)
    return several


def _ids(prompt: str | list[Part], tokenizer: Tokenizer) -> list[int]:
    parts = [prompt] if isinstance(prompt, str) else prompt
    ids = list[int]()
    for part in parts:
        ids += [part] if isinstance(part, int) else tokenizer.encode(part, special=True)
    return ids


class TemplateBody(msgspec.Struct, kw_only=True):
    """The body of ``POST /apply-template``."""

    messages: list[Message]
    add_generation_prompt: bool | None = None


class SlotBody(msgspec.Struct, kw_only=True):
    """The body of ``POST /slots/{id}``: the name of a state."""

    filename: str | None = None


_SAMPLERS = "not supported: samplers are those of wkvm, in its order"
COMPLETION = Policy(
    "/completion",
    frozenset(
        {
            "dry_allowed_length",
            "dry_base",
            "dry_penalty_last_n",
            "dry_sequence_breakers",
            "dynatemp_exponent",
            "mirostat_eta",
            "mirostat_tau",
            "n_keep",
            "penalize_nl",
            "samplers",
            "sse_ping_interval",
            "timings_per_token",
            "xtc_threshold",
        }
    ),
    {
        "adaptive_target": Unsupported((-1,), _SAMPLERS),
        "dry_multiplier": Unsupported((0,), _SAMPLERS),
        "dynatemp_range": Unsupported((0,), _SAMPLERS),
        "grammar": Unsupported(("",), "GBNF is not supported: use json_schema"),
        "image_data": Unsupported(([],), "this model reads text only"),
        "lora": Unsupported(([],), "not supported: the model is served as it was loaded"),
        "min_keep": Unsupported((0, 1), _SAMPLERS),
        "mirostat": Unsupported((0,), _SAMPLERS),
        "n_cmpl": Unsupported((1,), "not supported: ask for n of /v1/completions"),
        "n_indent": Unsupported((0,)),
        "post_sampling_probs": Unsupported((False,)),
        "repeat_last_n": Unsupported((-1, 64), "not supported: penalties count the whole text"),
        "response_fields": Unsupported(([],)),
        "return_progress": Unsupported((False,)),
        "system_prompt": Unsupported(("",), "not supported: put it into the prompt"),
        "t_max_predict_ms": Unsupported((-1, 0), "not supported: use /v1/completions"),
        "top_n_sigma": Unsupported((-1, 0), _SAMPLERS),
        "typical_p": Unsupported((1,), _SAMPLERS),
        "xtc_probability": Unsupported((0,), _SAMPLERS),
    },
)
TEMPLATE = Policy(
    "/apply-template",
    frozenset[str](),
    {"chat_template_kwargs": Unsupported(({},)), "tools": Unsupported(([],))},
)
POLICIES = (COMPLETION, TEMPLATE)
