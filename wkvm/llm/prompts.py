"""What a model is asked with: one prompt or conversation, or several."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias, cast

from wkvm.gateway.text.template import Message

Prompt: TypeAlias = str | Sequence[int]
"""A text, or token ids."""

Conversation: TypeAlias = Sequence[Message]
"""Messages, each with ``role`` and ``content``."""


def several_prompts(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """Several prompts as they are, one in a list."""
    if isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int)):
        return [cast("Prompt", prompts)]
    return list(cast("Sequence[Prompt]", prompts))


def several_conversations(messages: Conversation | Sequence[Conversation]) -> list[Conversation]:
    """Several conversations as they are, one in a list."""
    if len(messages) > 0 and isinstance(messages[0], Mapping):
        return [cast("Conversation", messages)]
    return list(cast("Sequence[Conversation]", messages))
