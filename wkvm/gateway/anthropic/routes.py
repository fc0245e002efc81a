"""The routes of Anthropic's interface: a part of the table of all."""

from wkvm.gateway.anthropic import messages
from wkvm.gateway.anthropic.bodies import MessagesBody, PromptBody
from wkvm.gateway.anthropic.dialect import ANTHROPIC, ErrorReply
from wkvm.gateway.anthropic.replies import CountedTokens, Reply
from wkvm.gateway.calls import Route
from wkvm.gateway.described import Doc

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/v1/messages",
        messages.messages,
        dialect=ANTHROPIC,
        doc=Doc(body=MessagesBody, answer=Reply, event=dict, error=ErrorReply),
    ),
    Route(
        "POST",
        "/v1/messages/count_tokens",
        messages.count_tokens,
        dialect=ANTHROPIC,
        doc=Doc(body=PromptBody, answer=CountedTokens, error=ErrorReply),
    ),
)
