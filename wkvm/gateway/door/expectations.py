"""What a request says of its body before it comes: how it is coded, and whether it waits."""

from aiohttp import HttpVersion11, web

from wkvm.gateway.failures import HttpError


def check_encoding(request: web.Request) -> None:
    """Refuse a body that is compressed.

    Raises:
        HttpError: 415.
    """
    if request.headers.get("Content-Encoding", "identity") != "identity":
        # Nobody needs it, and what a few bytes unfold to has to be bounded.
        why = "the body is compressed, send it as it is"
        raise HttpError(415, why, code="unsupported_encoding")


async def ask_for_body(request: web.Request) -> None:
    """Ask for the body, of a client that waits for that."""
    if check_expectation(request):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # of the answer nothing was sent


def check_expectation(request: web.Request) -> bool:
    """Check that the client expects no more than to be told to go on, before it sends its body.

    Returns:
        Whether it expects that.

    Raises:
        HttpError: 417; it expects something else.
    """
    expected = request.headers.get("Expect")
    if expected is None or request.version < HttpVersion11:
        return False
    if expected.lower() != "100-continue":
        raise HttpError(417, "Expect: only 100-continue is understood")
    return True
