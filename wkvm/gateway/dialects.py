"""What the answers of one interface have in common: how errors are written, and request ids."""

from collections.abc import Mapping

from wkvm.gateway.failures import HttpError, error_body

REQUEST_ID_HEADER = "X-Request-Id"


class Dialect:
    """OpenAI's, and that of wkvm's own routes. Other interfaces override what differs.

    Attributes:
        id_headers: of the answer; each has the request's id.
        names: what bodies call fields of OpenAI's interface, where it is another name.
    """

    id_headers: tuple[str, ...] = (REQUEST_ID_HEADER,)

    def __init__(self, names: Mapping[str, str] | None = None) -> None:
        self.names = names or {}

    def status(self, error: HttpError) -> int:
        """The status of an answer that is an error."""
        return error.status

    def body(self, error: HttpError, request_id: str) -> bytes:
        """The JSON of an error."""
        del request_id
        return error_body(error)

    def event(self, error: HttpError, request_id: str) -> bytes:
        """An error as the last event of a stream, framed."""
        return b"data: %b\n\n" % self.body(error, request_id)


OPENAI = Dialect()
