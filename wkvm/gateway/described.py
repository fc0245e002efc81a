"""What a route says of itself in the served document, beside the route in the table.

Types here are those that the route's own code decodes and encodes: the document is made from
them, and there is no second description that could differ. Making it is ``openapi``'s.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

JSON = "application/json"
EVENTS = "text/event-stream"
BYTES = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Query:
    """One parameter of a query.

    Attributes:
        kind: of its value, once read.
        is_many: whether it may be there several times.
    """

    name: str
    kind: Any = str
    what: str = ""
    is_many: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Doc:
    """What is taken and given, as types that msgspec knows: structs, unions of them, containers.

    Attributes:
        body: of the JSON body, exactly the type that the handler gives to ``Call.body``; a tuple
            of several where it depends; None for none.
        body_optional: whether the route has something to do without one.
        body_media: of a body that is no JSON.
        query: its parameters.
        status: of the answer that is no error.
        answer: of the JSON answer; a tuple of several where it depends; None for some object.
        event: of the data of each event, where the route may answer by a stream of them; an
            object of no more description is ``dict``.
        media: of an answer that is no JSON.
        error: of an error's body; None for OpenAI's.
        what: more than the first line of the handler's docstring says.
    """

    body: Any = None
    body_optional: bool = False
    body_media: str = JSON
    query: tuple[Query, ...] = ()
    status: int = 200
    answer: Any = None
    event: Any = None
    media: str = JSON
    error: Any = None
    what: str = ""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """The types of the body."""
        return _several(self.body)

    @property
    def answers(self) -> tuple[Any, ...]:
        """The types of the answer."""
        return _several(self.answer)


def _several(kind: Any) -> tuple[Any, ...]:
    if kind is None:
        return ()
    return tuple(cast(Iterable[Any], kind)) if isinstance(kind, tuple) else (kind,)


NO_DOC = Doc()
