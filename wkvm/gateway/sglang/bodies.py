"""What ``POST /generate`` takes."""

import msgspec

from wkvm.gateway.completions import CompletionRequest
from wkvm.gateway.failures import invalid
from wkvm.gateway.fields import Integer
from wkvm.gateway.policy import Policy, Unsupported
from wkvm.gateway.prompts import PromptField
from wkvm.gateway.schemas import Schema
from wkvm.gateway.structured import StructuredOutputs

MAX_STREAMED = 8192
"""Tokens of an answer that is streamed."""


class SamplingBody(msgspec.Struct, kw_only=True):
    """``sampling_params``. What becomes of other fields, the policy says."""

    max_new_tokens: Integer = 128
    min_new_tokens: Integer | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: Integer | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Integer] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    logit_bias: dict[str, float] | None = None
    n: Integer = 1
    json_schema: str | Schema | None = None
    regex: str | None = None
    sampling_seed: int | None = None


class GenerateBody(msgspec.Struct, kw_only=True):
    """The body.

    Attributes:
        text: one, or a list.
        input_ids: ids, or a list of lists of ids.
        return_logprob: whether log probabilities are told; of the prompt too, if
            ``logprob_start_len`` is not -1.
        top_logprobs_num: how many of the most likely ids at each position.
        rid: the name of the request.
    """

    text: str | list[str] | None = None
    input_ids: list[int | list[int]] | None = None
    sampling_params: dict[str, msgspec.Raw] | None = None
    stream: bool = False
    return_logprob: bool = False
    logprob_start_len: Integer = -1
    top_logprobs_num: Integer = 0
    rid: str | None = None
    priority: Integer | None = None

    @property
    def is_batch(self) -> bool:
        """Whether several prompts are given, and so several answers."""
        if self.text is not None:
            return isinstance(self.text, list)
        ids = self.input_ids or []
        return bool(ids) and isinstance(ids[0], list)

    def to_completion(self, sampling: SamplingBody) -> CompletionRequest:
        """The same as a completion of OpenAI's interface.

        Raises:
            HttpError: 400; it makes none.
        """
        if (self.text is None) == (self.input_ids is None):
            raise invalid("text", "give either text or input_ids")
        if self.stream and (self.is_batch or sampling.n != 1):
            raise invalid("stream", "one choice of one prompt is streamed")
        if self.stream and sampling.max_new_tokens > MAX_STREAMED:
            why = f"each event has the whole text so far: at most {MAX_STREAMED} tokens"
            raise invalid("stream", why)
        if sampling.json_schema is not None and sampling.regex is not None:
            raise invalid("regex", "excludes json_schema")
        outputs = None
        if sampling.json_schema is not None or sampling.regex is not None:
            outputs = StructuredOutputs(json=sampling.json_schema, regex=sampling.regex)
        tells_prompt = self.return_logprob and self.logprob_start_len >= 0
        if tells_prompt and self.stream:
            raise invalid("logprob_start_len", "no log probabilities of the prompt in a stream")
        given = self.input_ids if self.text is None else self.text
        return CompletionRequest(
            prompt=_prompt(given),
            stream=self.stream,
            max_tokens=sampling.max_new_tokens,
            min_tokens=sampling.min_new_tokens,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            top_k=sampling.top_k,
            min_p=sampling.min_p,
            frequency_penalty=sampling.frequency_penalty,
            presence_penalty=sampling.presence_penalty,
            repetition_penalty=sampling.repetition_penalty,
            stop=sampling.stop or None,
            stop_token_ids=sampling.stop_token_ids,
            ignore_eos=sampling.ignore_eos,
            skip_special_tokens=sampling.skip_special_tokens,
            include_stop_str_in_output=sampling.no_stop_trim,
            logit_bias=sampling.logit_bias,
            seed=sampling.sampling_seed,
            n=sampling.n,
            structured_outputs=outputs,
            logprobs=self.top_logprobs_num if self.return_logprob else None,
            prompt_logprobs=self.top_logprobs_num if tells_prompt else None,
            priority=self.priority,
            request_id=self.rid,
            return_metrics=True,
        )


def _prompt(given: str | list[str] | list[int | list[int]] | None) -> PromptField | None:
    return list(given) if isinstance(given, list) else given


GENERATE = Policy(
    "/generate",
    frozenset(
        {
            "background",
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "extra_key",
            "log_metrics",
            "no_logs",
            "return_text_in_logprobs",
            "session_id",
            "stream_options",
        }
    ),
    {
        "audio_data": Unsupported(([],), "this model reads text only"),
        "custom_logit_processor": Unsupported(),
        "image_data": Unsupported(([],), "this model reads text only"),
        "input_embeds": Unsupported(([],), "not supported: a prompt is text or ids"),
        "lora_path": Unsupported((), "not supported: the model is served as it was loaded"),
        "return_hidden_states": Unsupported((False,), "not supported: see /v1/embeddings"),
        "session_params": Unsupported((), "not supported: see /v1/sessions"),
        "token_ids_logprob": Unsupported(([],)),
        "video_data": Unsupported(([],), "this model reads text only"),
    },
)
SAMPLING = Policy(
    "/generate",
    frozenset({"spaces_between_special_tokens", "stream_interval"}),
    {
        "custom_params": Unsupported(({},)),
        "ebnf": Unsupported((), "not supported: use json_schema or regex"),
        "stop_regex": Unsupported(([],)),
        "structural_tag": Unsupported(),
    },
)
POLICIES = (GENERATE, SAMPLING)
