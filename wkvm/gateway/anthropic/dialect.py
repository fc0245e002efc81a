"""Errors as Anthropic's clients expect them."""

import msgspec

from wkvm.gateway.dialects import REQUEST_ID_HEADER, Dialect
from wkvm.gateway.failures import HttpError, short_message

OVERLOADED = 529
"""What Anthropic's servers answer for 503. Its clients try again after both."""

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""By the status; others are ``invalid_request_error`` below 499 and ``api_error`` from there on."""

NAMES = {
    "response_format": "output_config.format",
    "stop": "stop_sequences",
    "thinking_token_budget": "thinking.budget_tokens",
}
"""What bodies call fields of the chat that they are turned into, where it is another name."""


class Told(msgspec.Struct):
    """What went wrong."""

    type: str
    message: str


class ErrorReply(msgspec.Struct):
    """The body of an error."""

    type: str
    error: Told
    request_id: str


class AnthropicDialect(Dialect):
    """The format of Anthropic's errors. Fields at fault are named in the message alone."""

    id_headers = (REQUEST_ID_HEADER, "request-id")

    def status(self, error: HttpError) -> int:
        """As of the error, but for 503."""
        return OVERLOADED if error.status == 503 else error.status

    def body(self, error: HttpError, request_id: str) -> bytes:
        """The JSON of an error."""
        default = "invalid_request_error" if error.status < 499 else "api_error"
        told = Told(_TYPES.get(error.status, default), short_message(error))
        return msgspec.json.encode(ErrorReply("error", told, request_id))

    def event(self, error: HttpError, request_id: str) -> bytes:
        """An error as the last event of a stream, framed."""
        return b"event: error\ndata: %b\n\n" % self.body(error, request_id)


ANTHROPIC = AnthropicDialect(NAMES)
