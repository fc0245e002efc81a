"""Whether a tokenizer is that of a model which is served elsewhere."""

from wkvm_protocol.messages import HelloOk

from wkvm.core.errors import ConfigError
from wkvm.gateway.text import Tokenizer


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
