"""Errors as clients of llama.cpp's server expect them."""

import msgspec

from wkvm.gateway.dialects import Dialect
from wkvm.gateway.failures import HttpError, short_message

NOT_SUPPORTED = "not_supported"
"""The code of what a model cannot do at all."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    503: "unavailable_error",
}
"""By the status; others are ``invalid_request_error`` below 499 and ``server_error`` from there."""

NAMES = {
    "logprobs": "n_probs",
    "repetition_penalty": "repeat_penalty",
    "save_as": "id_slot",
    "state": "id_slot",
    "structured_outputs": "json_schema",
}
"""What bodies call fields of the completion that they are turned into, where it is another name."""


class Told(msgspec.Struct):
    """What went wrong."""

    code: int
    message: str
    type: str


class ErrorReply(msgspec.Struct):
    """The body of an error."""

    error: Told


class LlamaCppDialect(Dialect):
    """The format of llama.cpp's errors. Fields at fault are named in the message alone."""

    def body(self, error: HttpError, request_id: str) -> bytes:
        """The JSON of an error."""
        del request_id
        default = "invalid_request_error" if error.status < 499 else "server_error"
        kind = _TYPES.get(error.status, default)
        if error.code == NOT_SUPPORTED:
            kind = "not_supported_error"
        if error.code == "context_length_exceeded":
            kind = "exceed_context_size_error"
        told = Told(error.status, short_message(error), kind)
        return msgspec.json.encode(ErrorReply(told))


def called(limit: str) -> LlamaCppDialect:
    """The dialect for a body whose limit of the output has this name."""
    return LlamaCppDialect({**NAMES, "max_tokens": limit})


LLAMA_CPP = LlamaCppDialect(NAMES)
