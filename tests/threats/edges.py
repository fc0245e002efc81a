"""Where the limits of all fields of bodies are: values that are taken, and values that are not.

By what is at a place: the name of the innermost field, with ``[]`` for one of a list, ``{}`` for
a key and ``{:}`` for a value of an object. What is said here holds on every route that has such a
field, unless there is an entry for the route.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.threats.world import MODEL, VOCAB_SIZE

MOST = 2**31 - 1
STOPS = list(range(VOCAB_SIZE))
"""As ids that end a choice: its first token is its last."""
LARGEST = 1.7976931348623157e308


@dataclass(frozen=True)
class Edge:
    """The limits of a field.

    Attributes:
        beside: other fields of the body, without which the value would make no sense.
    """

    taken: tuple[Any, ...] = ()
    refused: tuple[Any, ...] = ()
    beside: Mapping[str, Any] = field(default_factory=dict[str, Any])


def numbers(low: float, high: float, *, above_low: bool = False, **beside: Any) -> Edge:
    """Numbers from ``low`` to ``high``."""
    just_below, just_above = low - max(abs(low), 1) * 1e-6, high + max(abs(high), 1) * 1e-6
    within = (5e-324, low + 1e-9) if above_low else (low,)
    outside = (low, just_below) if above_low else (just_below,)
    return Edge((*within, high, (low + high) / 2), (*outside, just_above, 1e308, -1e308), beside)


def integers(low: int, high: int, **beside: Any) -> Edge:
    """Whole numbers from ``low`` to ``high``."""
    near = tuple(dict.fromkeys((low, min(low + 1, high), max(high - 1, low), high)))
    return Edge(near, (low - 1, high + 1), beside)


def entries(one: Any, most: int, *, least: int = 0, **beside: Any) -> Edge:
    """Lists of so many of ``one``."""
    refused = [[one] * (most + 1)] + ([[one] * (least - 1)] if least else [])
    return Edge(([one] * least, [one] * (most - 1), [one] * most), tuple(refused), beside)


def texts(most: int, *, least: int = 0, **beside: Any) -> Edge:
    """Texts of so many characters."""
    refused = ["x" * (most + 1), "x" * 100_000] + ([""] if least else [])
    return Edge(("x" * max(least, 1), "x" * (most - 1), "x" * most), tuple(refused), beside)


TAGS = Edge(
    ({}, {f"k{n}": "v" for n in range(31)}, {f"k{n}": "v" for n in range(32)}),
    ({f"k{n}": "v" for n in range(33)},),
)
NAMES = Edge(("x", "x" * 127, "A.b_c-1"), ("", "x" * 129, "x/y", "..", ".x", "x\0", "\u0445"))
SECONDS = Edge((1, 2**32 - 1), (0, -1, -5e-324, 2**32, 1e19, LARGEST))
UNTIL = Edge((3600, 2**32 - 1), SECONDS.refused)
"""Long enough for what is tried after it."""
N_TOOLS = [
    [{"type": "function", "function": {"name": f"f{n}"}} for n in range(most)]
    for most in (1, 127, 128, 129)
]

EDGES: dict[str, Edge] = {
    # --- how ids are chosen
    "temperature": numbers(0, 100),
    "top_p": numbers(0, 1, above_low=True),
    "min_p": numbers(0, 1),
    "top_k": integers(-1, MOST),
    "repetition_penalty": numbers(0, 100, above_low=True),
    "repeat_penalty": numbers(0, 100, above_low=True),
    "presence_penalty": numbers(-100, 100),
    "frequency_penalty": numbers(-100, 100),
    "penalty_decay": numbers(0, 1, above_low=True),
    "logit_bias{:}": numbers(-100, 100),
    "logit_bias[]1": numbers(-100, 100),
    "logit_bias": Edge(({}, {"0": 1, "255": 1}), ({str(n): 0 for n in range(1025)},)),
    "seed": integers(-(2**63), 2**64 - 1),
    "sampling_seed": integers(-(2**63), 2**64 - 1),
    "allowed_token_ids": Edge(([255], STOPS), ([],)),
    "allowed_ids": Edge(([255], STOPS), ([],)),
    "bad_words": entries("zz", 512),
    "bad_words[]": Edge(("x", "x" * 63), ("", " ", "x" * 65)),
    # --- how many, and when it ends
    "n": integers(1, 128),
    "best_of": integers(1, 128),
    "max_tokens": Edge((-1, 1, MOST), (-2, MOST + 1), {"stop_token_ids": STOPS}),
    "max_completion_tokens": Edge(
        (-1, 1, MOST), (-2, 0, MOST + 1), {"stop_token_ids": STOPS, "max_tokens": None}
    ),
    "max_output_tokens": Edge((1, MOST), (-1, 0, MOST + 1), {"stop_token_ids": STOPS}),
    "max_new_tokens": Edge((0, 1), (-1, -2, MOST + 1)),
    "n_predict": Edge((-2, -1, 0, 1), (-3, MOST + 1), {"stop": ["\ufffd"]}),
    "min_tokens": Edge((0, 4), (-1, 5, MOST + 1), {"max_tokens": 4, "max_output_tokens": 4}),
    "min_new_tokens": Edge((0, 4), (-1, 5, MOST + 1), {}),
    "stop": entries("x", 64),
    "stop[]": texts(256, least=1),
    "stop_sequences": entries("x", 64),
    "stop_sequences[]": texts(256, least=1),
    "stop_token_ids": entries(255, 256),
    "stop_ids": entries(255, 256),
    "timeout_s": SECONDS,
    "priority": integers(-(2**63), 2**63 - 1),
    "stream_interval": integers(1, 1024, stream=True),
    "truncate_prompt_tokens": Edge((-1, 1, 2, 2**63 - 1), (-2, 0)),
    # --- what is told
    "logprobs": integers(0, 20),
    "top_logprobs": integers(0, 20, logprobs=True),
    "prompt_logprobs": integers(0, 20),
    "top_logprobs_num": integers(0, 20, return_logprob=True),
    "n_probs": integers(0, 20),
    "n_top": integers(0, 20),
    # --- names of things
    "model": Edge((MODEL,), ()),
    "request_id": texts(128),
    "rid": texts(128),
    "cache_salt": texts(256),
    "idempotency_key": Edge((), ("", "x" * 129)),
    "save_as": NAMES,
    "name": NAMES,
    "names": Edge((), ([], ["x", "x"], [f"y{n}" for n in range(65)])),
    "names[]": Edge((), ("", "x" * 129, "../x")),
    "others": Edge((), (["alpha"] * 16,), {"operation": "blend", "parameters": {}}),
    "filename": NAMES,
    # --- states
    "state_tags": Edge(TAGS.taken, TAGS.refused, {"save_as": "tagged"}),
    "tags": TAGS,
    "state_tags{:}": Edge(("", "x" * 256), ("x" * 257,), {"save_as": "tagged"}),
    "state_tags{}": Edge(("x", "x" * 256), ("x" * 257,), {"save_as": "tagged"}),
    "tags{:}": Edge(("", "x" * 256), ("x" * 257,)),
    "tags{}": Edge(("x", "x" * 256), ("x" * 257,)),
    "expires_in_s": UNTIL,
    "state_expires_in_s": Edge(UNTIL.taken, UNTIL.refused, {"save_as": "expiring"}),
    "checkpoint_every": Edge((64, 2**63 - 1), (0, 1, 63, -1, 2**63), {"save_as": "checked"}),
    "expected_version": Edge((), (-1, 2**63, 2**64), {}),
    "version": Edge((), (-1, 2**63, 2**64)),
    "position": Edge((), (-1, 2**63, 2**64)),
    "turns": Edge((), (0, -1, 2**63, 2**64)),
    # --- tools and what an answer must be
    "tools": Edge(tuple(N_TOOLS[:3]), (N_TOOLS[3],)),
    "metadata": Edge(({}, {f"k{n}": "v" for n in range(16)}), ({f"k{n}": "v" for n in range(17)},)),
    "metadata{}": Edge(("x" * 64,), ("x" * 65,)),
    "metadata{:}": Edge(("", "x" * 512), ("x" * 513,)),
    # --- embeddings
    "dimensions": Edge((1,), (0, -1, 2, 2**31)),
    "id": Edge((), ("x" * 129,)),
    "tokens": Edge(([1] * 2**18,), ([1] * (2**18 + 1),)),
    "borders[]": Edge((1,), (-1, 2**32, 2**63)),
    # --- llama.cpp's and others'
    "id_slot": integers(-1, 15),
}
"""What is not said of a field is that it has no limit of its own: see ``UNLIMITED``."""

NATIVE = ("/v1/generate", "/v1/stream", "/v1/submit")
OF_MESSAGES = integers(-(2**63), 2**64 - 1)
"""What a number of a message may be."""
AT: dict[tuple[str, str], Edge | None] = {
    **{(path, "top_k"): integers(0, MOST) for path in NATIVE},
    **{(path, "seed"): integers(0, 2**64 - 1) for path in NATIVE},
    **{(path, "n"): integers(1, 64) for path in NATIVE},
    **{
        (path, "max_tokens"): Edge((0, 1, MOST), (-1, -2, MOST + 1), {"stop_ids": STOPS})
        for path in NATIVE
    },
    ("/completion", "top_k"): Edge((-5, -1, 0, MOST), (MOST + 1, 2**63)),
    ("/completion", "max_tokens"): Edge((-2, -1, 0, 1), (-3, MOST + 1), {"n_predict": None}),
    ("/v1/messages", "max_tokens"): Edge((1, 2), (-1, 0, MOST + 1)),
    ("/v1/messages", "metadata"): None,
    ("/v1/messages", "tools"): None,
    ("/v1/messages/count_tokens", "tools"): None,
    ("/tokenize", "tools"): None,
    ("/v1/responses", "tools"): None,
    ("/v1/responses", "n"): Edge((1,), (0, 2, -1)),
    ("/v1/responses", "request_id"): None,
    ("/v1/sessions/{id}/generate", "request_id"): None,
    ("/v1/sessions/{id}/generate", "n"): Edge((1,), (0, 2, -1)),
    ("/generate", "min_new_tokens"): Edge((0, 1), (-1, 2, MOST + 1)),
    **{
        (path, name): Edge((), taken)
        for path in ("/v1/responses", "/v1/sessions/{id}/generate")
        for name, taken in (
            ("save_as", ("x",)),
            ("state_tags", ({"a": "b"},)),
            ("state_tags{}", ("x",)),
            ("state_tags{:}", ("x",)),
            ("state_expires_in_s", (3600,)),
        )
    },
    ("/v1/responses", "checkpoint_every"): Edge((), (64,)),
    ("/v1/sessions/{id}/generate", "checkpoint_every"): Edge(
        (64, 2**63 - 1), (0, 1, 63, -1, 2**63)
    ),
    **{
        (path, "priority"): OF_MESSAGES
        for path in (*NATIVE, "/v1/score", "/v1/states", "/v1/sessions/{id}/append")
    },
}
"""By path of the route too; None where it is another thing there, or is not read."""


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNLIMITED: dict[str, frozenset[str]] = {
    "what a model reads: as long as the body, and what the engine has room for": words(
        "arguments content description input input[] instructions items messages prompt prompt[]"
        " prompt[][] system text text[] ids input_ids input_ids[] borders"
    ),
    "ids: see test_ids": words(
        "allowed_ids[] allowed_token_ids[] ids[] input[][] input_ids[] input_ids[][] logit_bias[]0"
        " logit_bias{} stop_ids[] stop_token_ids[] tokens[]"
    ),
    "names of what is there, or is not": words(
        "conversation model operation other others[] path previous_response_id state"
    ),
    "a schema, a grammar or what a template is given: see gateway/test_schema_limits": words(
        "chat_template_kwargs chat_template_kwargs{} json_schema json_schema{} regex"
    ),
    "told and not used": words("max_tool_calls prompt_cache_key safety_identifier user"),
    "a word to the template, or one of a few": words("include include[] reasoning_effort"),
    "of models that think: see gateway/test_responses_thinking": words(
        "budget_tokens thinking_token_budget"
    ),
    "parameters of a mutation: see test_numbers": words("parameters parameters{} sampling_params"),
    "a state's file in base64": words("state_bytes"),
    "from where on: -1 for nowhere": words("logprob_start_len"),
}
"""Fields that have no limit of their own, by why not."""
