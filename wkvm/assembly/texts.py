"""The text side of a model: loaded for a gateway, or checked against a model served elsewhere."""

from pathlib import Path

from wkvm_protocol.messages import HelloOk

from wkvm.assembly.models import generation_settings
from wkvm.core.errors import ConfigError
from wkvm.gateway.config import DEFAULT_MAX_TOKENS
from wkvm.gateway.text import Tokenizer, load_chat_template
from wkvm.gateway.texts import Texts


def load_texts(model: Path, tokenizer: Tokenizer, *, default_max_tokens: int | None) -> Texts:
    """What a gateway needs beside the tokenizer, from a model's folder.

    Args:
        model: a folder, or a file in one.
        default_max_tokens: None takes what the model's maker suggests.

    Raises:
        CorruptCheckpointError, TemplateError: a file cannot be read.
    """
    settings = generation_settings(model)
    if default_max_tokens is None:
        # Some write 0 or -1 where they mean no limit.
        suggested = settings.max_new_tokens or 0
        default_max_tokens = suggested if suggested > 0 else DEFAULT_MAX_TOKENS
    return Texts(tokenizer, load_chat_template(model), settings.suggested(), default_max_tokens)


def check_tokenizer(tokenizer: Tokenizer, server: HelloOk, *, hint: str) -> None:
    """Check that a server's ids mean what the tokenizer says.

    Args:
        hint: what to do about it, for the message.

    Raises:
        ConfigError: they do not.
    """
    if tokenizer.digest == server.tokenizer_digest:
        return
    ours, theirs = tokenizer.digest[:12] or "none", server.tokenizer_digest[:12] or "none"
    raise ConfigError(
        "tokenizer",
        f"it is not that of {server.model}, which the server runs (digest {ours}, the server "
        f"says {theirs}): {hint}",
    )
