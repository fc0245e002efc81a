"""Which parsers a model's answers want: by name, or by what its chat template says."""

from functools import lru_cache

from wkvm.gateway.parsing.forms import REASONING_FORMS, TOOL_FORMS, ReasoningForm, ToolForm
from wkvm.gateway.parsing.names import AUTO, NONE, REASONING_ALIASES, TOOL_ALIASES

# The first that a template has all words of.
_TOOL_SIGNS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("kimi_k2", ("<|tool_calls_section_begin|>",)),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral", ("[TOOL_CALLS]",)),
    ("nemotron", ("<TOOLCALL>",)),
    ("jamba", ("<tool_calls>",)),
    ("granite", ("<|tool_call|>",)),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("granite_tag", ("<tool_call>[",)),
    ("hermes", ("<tool_call>",)),
    ("llama3_json", ("<|python_tag|>",)),
    ("llama3_json", ('"parameters": ', '"name": ')),
)
_REASONING_SIGNS = ("think", "mistral", "kimi", "seed_oss", "granite")


def tool_form(name: str, template: str, *, knows_tools: bool) -> ToolForm:
    """The form of a model's calls.

    Args:
        name: one of ``TOOL_PARSERS``.
        template: the source of the chat template, for ``auto``.
        knows_tools: whether it writes tools by itself; if not, a model is told of ``json``.

    Raises:
        KeyError: there is no parser of this name.
    """
    if name == AUTO:
        name = _tool_parser_of(template) if knows_tools else "json"
    return TOOL_FORMS[TOOL_ALIASES.get(name, name)]


def reasoning_form(name: str, template: str) -> ReasoningForm | None:
    """The form of a model's reasoning; None if all is answer.

    Args:
        name: one of ``REASONING_PARSERS``.
        template: the source of the chat template, for ``auto``.

    Raises:
        KeyError: there is no parser of this name.
    """
    if name == AUTO:
        name = _reasoning_parser_of(template)
    return None if name == NONE else REASONING_FORMS[REASONING_ALIASES.get(name, name)]


@lru_cache(maxsize=8)
def _tool_parser_of(template: str) -> str:
    found = (name for name, words in _TOOL_SIGNS if all(word in template for word in words))
    return next(found, "json")


@lru_cache(maxsize=8)
def _reasoning_parser_of(template: str) -> str:
    for name in _REASONING_SIGNS:
        form = REASONING_FORMS[name]
        if form.opening in template and form.closing in template:
            return name
    return NONE
