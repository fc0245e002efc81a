"""Conversations that are too long: which of their messages can be left out, oldest first."""

from collections.abc import Sequence

from wkvm.gateway.chat.messages import Message

_STAY = ("system", "developer")


def shortened(messages: Sequence[Message]) -> list[list[Message]]:
    """The same conversation with ever less of its beginning, the longest first.

    System messages stay, and so does the last turn of a user with what follows it. What is left
    begins with a user, so that no result is without its call.
    """
    starts = [
        index
        for index, message in enumerate(messages)
        if message.role == "user" and any(one.role not in _STAY for one in messages[:index])
    ]
    return [
        [*(one for one in messages[:start] if one.role in _STAY), *messages[start:]]
        for start in starts
    ]
