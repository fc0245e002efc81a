"""What becomes of the fields of a body that its route does not use: one table for each route.

A body's fields are of four kinds. Those of its struct are used. Of the others, some are *unused*:
taken, and nothing follows from them. Some are *unsupported*: known, and refused by name unless
their value asks for nothing, since an answer without them would not be what was asked for. All
others are *unknown*: ignored, and counted, by their names if these are known from elsewhere, and
otherwise together. Nothing of what a client sends becomes a name here.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from wkvm.gateway.failures import invalid

OTHER = "other"
"""Stands for all unknown fields that are not in ``NAMED``."""


class Unsupported(NamedTuple):
    """A field that is known and not supported.

    Attributes:
        neutral: values that ask for nothing. So does null.
        why: what there is to say to who asks for something.
    """

    neutral: tuple[object, ...] = ()
    why: str = "not supported"


@dataclass(frozen=True, slots=True)
class Policy:
    """What one route does with fields that its struct does not have.

    Attributes:
        route: as metrics name it.
        unused: taken, whatever their values are.
        unsupported: by name.
    """

    route: str
    unused: frozenset[str]
    unsupported: Mapping[str, Unsupported]

    def check(
        self, data: bytes, kind: type[msgspec.Struct], ignored: Counter[tuple[str, str]]
    ) -> None:
        """Look at the fields of a body that was decoded as ``kind``.

        Cost: a microsecond, and one for some KiB of the body.

        Args:
            ignored: counts, by route and field, what is unknown.

        Raises:
            HttpError: 400; a field is unsupported, and asks for something.
        """
        try:
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise invalid(
                None, f"the body is not the JSON that this route takes: {error}"
            ) from error
        used = _names_of(kind)
        for name, raw in fields.items():
            if name in used or name in self.unused:
                continue
            unsupported = self.unsupported.get(name)
            if unsupported is None:
                ignored[self.route, name if name in NAMED else OTHER] += 1
            elif not _asks_for_nothing(raw, unsupported):
                raise invalid(name, unsupported.why)


def _names_of(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return kind.__struct_encode_fields__


def _asks_for_nothing(raw: msgspec.Raw, field: Unsupported) -> bool:
    try:
        value: object = msgspec.json.decode(raw)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return False
    if value is None:
        return True
    # 0 is no False here, and 1 no True
    return any(
        value == one and isinstance(value, bool) == isinstance(one, bool) for one in field.neutral
    )


_USE_OUTPUTS = "not supported: use structured_outputs"
_CALLED = "this is a field of chats; of responses it is {}"
_USE_MODEL = "not supported: the model is served as it was loaded"

_UNUSED = frozenset(
    {
        "metadata",
        "safety_identifier",
        "service_tier",
        "session_id",
        "spaces_between_special_tokens",
        "store",
    }
)
_UNSUPPORTED: Mapping[str, Unsupported] = {
    "early_stopping": Unsupported((False,)),
    "guided_choice": Unsupported(([],), _USE_OUTPUTS),
    "guided_grammar": Unsupported((), _USE_OUTPUTS),
    "guided_json": Unsupported((), _USE_OUTPUTS),
    "guided_regex": Unsupported((), _USE_OUTPUTS),
    "kv_transfer_params": Unsupported(({},), "not supported: states move by /v1/states"),
    "length_penalty": Unsupported((1,)),
    "logits_processors": Unsupported(([],)),
    "logprob_token_ids": Unsupported(([],)),
    "lora_path": Unsupported((), _USE_MODEL),
    "lora_request": Unsupported((), _USE_MODEL),
    "prompt_embeds": Unsupported((), "not supported: a prompt is text or ids"),
    "use_beam_search": Unsupported((False,)),
    "vllm_xargs": Unsupported(({},)),
}

COMPLETIONS = Policy(
    "/v1/completions",
    _UNUSED | {"add_special_tokens"},
    {
        **_UNSUPPORTED,
        "thinking_token_budget": Unsupported((), "not supported: a completion is all text"),
        "suffix": Unsupported(("",), "this model cannot fill in: there is no token for a gap"),
    },
)
CHATS = Policy(
    "/v1/chat/completions",
    _UNUSED | {"add_special_tokens", "prompt_cache_key", "verbosity"},
    {
        **_UNSUPPORTED,
        "audio": Unsupported(),
        "best_of": Unsupported((1,), "not supported in chats: ask for n"),
        "chat_template": Unsupported((), "templates come with the model, not with requests"),
        "documents": Unsupported(([],)),
        "function_call": Unsupported(("none",), "not supported: use tool_choice"),
        "functions": Unsupported(([],), "not supported: use tools"),
        "modalities": Unsupported((["text"],), 'only ["text"] is supported'),
        "prediction": Unsupported(),
        "web_search_options": Unsupported(),
    },
)
TURNS = Policy(
    "/v1/sessions/{id}/generate",
    CHATS.unused | {"parallel_tool_calls", "reasoning_effort"},
    {name: field for name, field in CHATS.unsupported.items() if name != "best_of"}
    | {
        "best_of": Unsupported((1,), "a session goes one way: fork it for several"),
        "chat_template_kwargs": Unsupported(({},)),
        "thinking_token_budget": Unsupported(),
    },
)
TOKENS = Policy(
    "/tokenize",
    frozenset({"add_special", "add_special_tokens", "parse_special"}),
    {
        "chat_template": CHATS.unsupported["chat_template"],
        "with_pieces": Unsupported((False,), "not supported: use return_token_strs"),
    },
)
MESSAGES = Policy(
    "/v1/messages",
    frozenset({"cache_control", "context_management", "inference_geo", "service_tier", "speed"}),
    {
        "container": Unsupported(),
        "mcp_servers": Unsupported(([],), "not supported: this server calls no other"),
        "output_format": Unsupported((), "not supported: use output_config.format"),
    },
)
COUNTED_MESSAGES = Policy(
    "/v1/messages/count_tokens",
    MESSAGES.unused
    | {"max_tokens", "metadata", "stop_sequences", "stream", "temperature", "top_k", "top_p"},
    MESSAGES.unsupported,
)
RESPONSES = Policy(
    "/v1/responses",
    _UNUSED | {"prompt_cache_options", "prompt_cache_retention"},
    {
        **_UNSUPPORTED,
        "access_programs": Unsupported(),
        "background_options": Unsupported(({},)),
        "context_management": Unsupported(([],), "not supported: a state is as small as it is"),
        "image": Unsupported(({},)),
        "max_completion_tokens": Unsupported((), _CALLED.format("max_output_tokens")),
        "max_tokens": Unsupported((), _CALLED.format("max_output_tokens")),
        "messages": Unsupported(([],), _CALLED.format("input")),
        "moderation": Unsupported(({},)),
        "prompt": Unsupported((), "not supported: no prompts are kept here"),
        "reasoning_effort": Unsupported((), _CALLED.format("reasoning.effort")),
        "response_format": Unsupported(({"type": "text"},), _CALLED.format("text.format")),
    },
)
COUNTED_RESPONSES = Policy(
    "/v1/responses/input_tokens",
    RESPONSES.unused
    | {
        "background",
        "chat_template_kwargs",
        "include",
        "max_output_tokens",
        "max_tool_calls",
        "personality",
        "prompt_cache_key",
        "thinking_token_budget",
        "top_logprobs",
    },
    RESPONSES.unsupported,
)

EMBEDDINGS = Policy(
    "/v1/embeddings",
    frozenset({"add_special_tokens"}),
    {
        "embed_dtype": Unsupported(("float32",), "not supported: numbers are float32"),
        "endianness": Unsupported(("little", "native"), "not supported: bytes are little-endian"),
        "messages": Unsupported((), "not supported: send input"),
        "mm_processor_kwargs": Unsupported(({},)),
        "task": Unsupported(("embed",)),
        "use_activation": Unsupported((), "not supported: use normalize"),
    },
)

POLICIES = (
    CHATS,
    COMPLETIONS,
    COUNTED_MESSAGES,
    COUNTED_RESPONSES,
    EMBEDDINGS,
    MESSAGES,
    RESPONSES,
    TOKENS,
    TURNS,
)

NAMED = frozenset(
    {
        "cache_prompt",
        "custom_logit_processor",
        "custom_params",
        "detokenize",
        "dry_allowed_length",
        "dry_base",
        "dry_multiplier",
        "dynatemp_range",
        "ebnf",
        "enable_thinking",
        "grammar",
        "id_slot",
        "images",
        "json_schema",
        "keep_alive",
        "max_new_tokens",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "mm_processor_kwargs",
        "models",
        "n_predict",
        "n_probs",
        "no_stop_trim",
        "num_ctx",
        "num_predict",
        "options",
        "plugins",
        "prompt_cache_retention",
        "provider",
        "reasoning",
        "reasoning_format",
        "regex",
        "repeat_last_n",
        "repeat_penalty",
        "rid",
        "sampling_params",
        "separate_reasoning",
        "stream_reasoning",
        "tfs_z",
        "think",
        "thinking",
        "top_a",
        "transforms",
        "typical_p",
        "xtc_probability",
        "xtc_threshold",
    }
)
"""Names that other servers give to fields: unknown ones among these are counted by name."""
