"""What the text of an answer must be, as requests say it, made a grammar."""

from dataclasses import dataclass
from typing import Literal, cast

import msgspec
from wkvm_client import Grammar

from wkvm.gateway.failures import invalid
from wkvm.gateway.parsing.forms import in_slashes
from wkvm.gateway.parsing.grammar import ANSWER
from wkvm.gateway.schemas import Schema, check_schema, closed, compact, roomy

FIELD = "structured_outputs"
FORMAT = "response_format"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What an answer must be.

    Attributes:
        field: of the request that says so.
        grammar: of the answer, where it is all that the model writes.
        rules: the same as the rule ``answer`` of a larger grammar; None where it cannot be.
    """

    field: str
    grammar: Grammar
    rules: list[str] | None


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's. Exactly one of these counts. Other fields are ignored.

    Attributes:
        json: a JSON schema, as an object or as JSON in a string.
        json_object: any JSON object.
        regex: matches all of the output.
        choice: the output is one of these.
        grammar: in the dialect of Lark that llguidance has.
        structural_tag: not supported.
    """

    json: dict[str, object] | bool | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: object = None

    def to_wanted(self) -> Wanted:
        """What the text must be.

        Raises:
            HttpError: 400; none is named, or several, or one that makes no grammar.
        """
        if self.structural_tag is not None:
            raise invalid(FIELD, "structural_tag is not supported: use grammar")
        found = list[Wanted]()
        if self.json is not None:
            found.append(_of_schema(_schema(self.json), FIELD, "json"))
        if self.json_object:
            found.append(_of_schema({"type": "object"}, FIELD, "json_object"))
        if self.regex is not None:
            rules = [f"{ANSWER}: /(?:{in_slashes(self.regex)})/"]
            found.append(Wanted(FIELD, Grammar("regex", self.regex), rules))
        if self.choice is not None:
            found.append(_of_choice(self.choice))
        if self.grammar is not None:
            found.append(Wanted(FIELD, Grammar("lark", self.grammar), None))
        if len(found) != 1:
            why = "one of json, json_object, regex, choice and grammar is needed, and only one"
            raise invalid(FIELD, why)
        return found[0]

    def to_grammar(self) -> Grammar:
        """As ``to_wanted``: the grammar of an output that is nothing else."""
        return self.to_wanted().grammar


class NamedSchema(msgspec.Struct):
    """A JSON schema for an answer."""

    name: str
    schema: Schema | None = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct):
    """OpenAI's: what an answer is to be. vLLM's ``structural_tag`` is not supported."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: NamedSchema | None = None

    def to_wanted(self) -> Wanted | None:
        """What the text must be; None for any.

        Properties that a schema does not list are left out, and there is no white space between
        tokens: see ``closed`` and ``compact``.

        Raises:
            HttpError: 400; it makes no grammar.
        """
        match self:
            case ResponseFormat(type="text"):
                return None
            case ResponseFormat(type="json_object"):
                return _of_compact({"type": "object"})
            case ResponseFormat(json_schema=NamedSchema(schema=schema)):
                schema = {"type": "object"} if schema is None else schema
                checked = check_schema(closed(schema), FORMAT, at="json_schema.schema")
                return _of_compact(cast("Schema", checked))
            case _:
                raise invalid(FORMAT, 'type "json_schema" needs a "json_schema"')


def _schema(schema: dict[str, object] | bool | str) -> object:
    if not isinstance(schema, str):
        return schema
    try:
        return msgspec.json.decode(schema)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise invalid(FIELD, f"json is no JSON schema: {error}") from error


def _of_schema(schema: object, field: str, at: str) -> Wanted:
    checked = check_schema(schema, field, at=at)
    rules = [f"{ANSWER}: %json {_json(roomy(checked))}"]
    return Wanted(field, Grammar("json_schema", _json(checked)), rules)


def _of_compact(schema: Schema) -> Wanted:
    written = _json(compact(schema))
    return Wanted(FORMAT, Grammar("json_schema", written), [f"{ANSWER}: %json {written}"])


def _of_choice(choices: list[str]) -> Wanted:
    if not choices or not all(choices):
        raise invalid(FIELD, "choice needs at least one text, and no empty one")
    # Lark's strings are written as those of JSON.
    either = " | ".join(map(_json, choices))
    return Wanted(FIELD, Grammar("lark", f"start: {either}\n"), [f"{ANSWER}: {either}"])


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()
