"""The names of parsers, for a command line that is read before anything is imported.

What a name stands for is in ``registry``, whose tests hold that it knows them all.
"""

from collections.abc import Mapping

AUTO = "auto"
NONE = "none"

TOOL_ALIASES: Mapping[str, str] = {
    "granite4": "hermes",
    "falcon_h1": "hermes",
    "llama3": "llama3_json",
    "nemotron_h": "nemotron",
    "nemotron_v3": "qwen3_coder",
    "qwen": "hermes",
    "qwen25": "hermes",
    "qwen3": "hermes",
    "qwen3_5": "qwen3_coder",
    "qwen3_next": "hermes",
    "qwen3_xml": "qwen3_coder",
    "rwkv": "json",
}
REASONING_ALIASES: Mapping[str, str] = {
    "deepseek_r1": "think",
    "falcon_h1": "think",
    "kimi_k2": "think",
    "nemotron_h": "think",
    "nemotron_v3": "think",
    "qwen3": "think",
    "qwen3_5": "think",
    "rwkv": "think",
}
_TOOL_FORMS = (
    "granite",
    "granite_tag",
    "hermes",
    "jamba",
    "json",
    "kimi_k2",
    "llama3_json",
    "mistral",
    "mistral_args",
    "nemotron",
    "qwen3_coder",
)
_REASONING_FORMS = ("granite", "kimi", "mistral", "seed_oss", "think")
TOOL_PARSERS = (AUTO, *sorted({*_TOOL_FORMS, *TOOL_ALIASES}))
REASONING_PARSERS = (AUTO, NONE, *sorted({*_REASONING_FORMS, *REASONING_ALIASES}))
