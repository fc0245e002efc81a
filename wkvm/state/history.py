"""Provenance as text that travels with a state, and the reading of what somebody else wrote."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from wkvm.core.errors import BadStateFileError
from wkvm.core.registry import Parent, Provenance, canonical_json

MAX_HISTORY_BYTES = 2**18

Text = Annotated[str, msgspec.Meta(max_length=256)]
Count = Annotated[int, msgspec.Meta(ge=0, le=2**48)]


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The types of a provenance, for ``msgspec`` to check."""

    operation: Text
    parameters: dict[str, Any]
    parents: list[tuple[Text, Text]]
    n_before: Count
    n_after: Count
    seed: Annotated[int, msgspec.Meta(ge=0)] | None
    engine: Text
    cuts: list[Count]


class _History(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    omitted: Count
    records: list[_Record]


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """How a state came to be, as far as it is told.

    Attributes:
        records: the newest last.
        omitted: how many older ones are left out.
    """

    records: tuple[Provenance, ...] = ()
    omitted: int = 0


def encode_history(records: Sequence[Provenance], omitted: int = 0) -> str:
    """The text of ``records``, newest last; empty for none.

    Of a long history the newest records that fit ``MAX_HISTORY_BYTES`` are told, and how many are
    left out.
    """
    texts, n_bytes = list[str](), 64
    for record in reversed(records):
        text = canonical_json(record.to_json())
        n_bytes += len(text) + 1
        if n_bytes > MAX_HISTORY_BYTES:
            break
        texts.append(text)
    omitted += len(records) - len(texts)
    if not texts and not omitted:
        return ""
    return f'{{"omitted":{omitted},"records":[{",".join(reversed(texts))}]}}'


def decode_history(text: str) -> History:
    """The reverse. The text may be anybody's.

    Raises:
        BadStateFileError: it is not what ``encode_history`` makes.
    """
    if not text:
        return History()
    if len(text) > MAX_HISTORY_BYTES:
        raise BadStateFileError(f"a history of more than {MAX_HISTORY_BYTES:,} characters")
    try:
        read = msgspec.json.decode(text, type=_History)
        records = [
            Provenance(
                operation=one.operation,
                parameters=one.parameters,
                parents=tuple(Parent(ref=ref, content_id=content) for ref, content in one.parents),
                n_before=one.n_before,
                n_after=one.n_after,
                seed=one.seed,
                engine=one.engine,
                cuts=tuple(one.cuts),
            )
            for one in read.records
        ]
        again = encode_history(records, read.omitted)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise BadStateFileError("its history is none") from error
    if again != text:
        raise BadStateFileError("its history is not written as wkvm writes it")
    return History(records=tuple(records), omitted=read.omitted)
