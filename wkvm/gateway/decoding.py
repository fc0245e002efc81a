"""JSON to what a route takes. What it is not is said in the words of whoever sent it."""

from typing import TypeVar

import msgspec

from wkvm.gateway.allowed import with_allowed
from wkvm.gateway.failures import invalid, misfit
from wkvm.gateway.nesting import read_json

T = TypeVar("T")


def decode_body(data: bytes, kind: type[T]) -> T:
    """JSON to what a route takes.

    Raises:
        HttpError: 400; it names the field where one is at fault.
    """
    try:
        return read_json(data, kind)
    except msgspec.ValidationError as error:
        raise misfit(with_allowed(str(error), kind)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not data:
            raise invalid(None, "there is no body; this route takes JSON") from error
        raise invalid(None, f"the body is not the JSON that this route takes: {error}") from error
