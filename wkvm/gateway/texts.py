"""What the gateway knows of the model besides what the engine says: its text side."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wkvm.gateway.config import DEFAULT_MAX_TOKENS
from wkvm.gateway.parsing.forms import ReasoningForm, ToolForm
from wkvm.gateway.parsing.names import AUTO
from wkvm.gateway.parsing.registry import reasoning_form, tool_form
from wkvm.gateway.text.template import ChatTemplate
from wkvm.gateway.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Texts:
    """The text side of the model that is served. Immutable.

    Attributes:
        tokenizer: of the model.
        template: for chats.
        suggested: the sampling that the model's maker suggests, as keywords of
            ``wkvm_client.aio.Client.generate``; what a request does not say, this says.
        default_max_tokens: for a chat that names no limit, and a completion neither.
        tool_parser, reasoning_parser: how the model writes calls and reasoning; see
            ``parsing.names``.
    """

    tokenizer: Tokenizer
    template: ChatTemplate
    suggested: Mapping[str, float | int] = field(default_factory=dict[str, float | int])
    default_max_tokens: int = DEFAULT_MAX_TOKENS
    tool_parser: str = AUTO
    reasoning_parser: str = AUTO

    @property
    def tool_form(self) -> ToolForm:
        """How the model writes calls."""
        template = self.template
        return tool_form(self.tool_parser, template.source, knows_tools=template.knows_tools)

    @property
    def reasoning_form(self) -> ReasoningForm | None:
        """How the model writes what it thinks; None if it does not."""
        return reasoning_form(self.reasoning_parser, self.template.source)
