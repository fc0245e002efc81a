"""What the text of an answer must be, as requests say it, made a grammar."""

from dataclasses import dataclass
from typing import Literal, cast

import msgspec
from wkvm_client import Grammar

from wkvm.gateway.failures import invalid
from wkvm.gateway.nesting import NestingError, read_json
from wkvm.gateway.parsing.forms import in_slashes
from wkvm.gateway.parsing.grammar import ANSWER
from wkvm.gateway.schemas import Schema, check_schema, closed, compact, roomy

FIELD = "structured_outputs"
FORMAT = "response_format"
MAX_GRAMMAR = 65_536
"""Bytes of a grammar that the engine takes. What is longer is refused before anything is made of
it."""
_ANY_OBJECT: Schema = {"type": "object"}


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


class Structure(msgspec.Struct):
    """A part of a text that begins and ends with words, and is JSON between them."""

    begin: str
    end: str
    schema: Schema | None = None


class StructuralTag(msgspec.Struct):
    """vLLM's and SGLang's: any text, in which each trigger begins one of the structures.

    Attributes:
        structures: each begins with a trigger.
        triggers: what the model may not write otherwise.
        type: always this one.
    """

    structures: list[Structure] = msgspec.field(default_factory=list[Structure])
    triggers: list[str] = msgspec.field(default_factory=list[str])
    type: Literal["structural_tag"] = "structural_tag"

    def to_wanted(self, field: str) -> Wanted:
        """What the text must be.

        Raises:
            HttpError: 400; it makes no grammar.
        """
        if not self.structures or not all(self.triggers):
            raise invalid(field, "a structural_tag needs structures, and no empty trigger")
        lines = list[str]()
        for index, one in enumerate(self.structures):
            trigger = next((word for word in self.triggers if one.begin.startswith(word)), None)
            if trigger is None:
                why = f"structures[{index}].begin begins with none of the triggers"
                raise invalid(field, why)
            schema = {} if one.schema is None else one.schema
            checked = check_schema(schema, field, at=f"structures[{index}].schema")
            rest = one.begin.removeprefix(trigger)
            lines += [
                f"part_{index}_trigger[lazy]: ANY_TEXT {_json(trigger)}",
                f"part_{index}: part_{index}_trigger {_json(rest)} part_{index}_json "
                f"{_json(one.end)}",
                f"part_{index}_json: %json {_json(compact(cast('Schema', checked)))}",
            ]
        parts = " | ".join(f"part_{index}" for index in range(len(self.structures)))
        rules = [f"{ANSWER}: ({parts})* last_text", "last_text: ANY_TEXT", *lines]
        rules.append("ANY_TEXT: /(?s:.*)/")
        grammar = "\n".join([f"start: {ANSWER}", *rules, ""])
        return Wanted(field, Grammar("lark", grammar), rules)


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """vLLM's. Exactly one of these counts. Other fields are ignored.

    Attributes:
        json: a JSON schema, as an object or as JSON in a string.
        json_object: any JSON object.
        regex: matches all of the output.
        choice: the output is one of these.
        grammar: in the dialect of Lark that llguidance has.
        structural_tag: free text with parts that follow schemas; see ``StructuralTag``. As an
            object, or as JSON in a string.
    """

    json: dict[str, object] | bool | str | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    structural_tag: StructuralTag | str | None = None

    def to_wanted(self) -> Wanted:
        """What the text must be.

        Raises:
            HttpError: 400; none is named, or several, or one that makes no grammar.
        """
        found = list[Wanted]()
        if self.json is not None:
            found.append(_of_schema(_schema(self.json), FIELD, "json"))
        if self.json_object:
            found.append(_of_schema({"type": "object"}, FIELD, "json_object"))
        if self.regex is not None:
            _check_length(self.regex)
            rules = [f"{ANSWER}: /(?:{in_slashes(self.regex)})/"]
            found.append(Wanted(FIELD, Grammar("regex", self.regex), rules))
        if self.choice is not None:
            found.append(_of_choice(self.choice))
        if self.grammar is not None:
            _check_length(self.grammar)
            found.append(Wanted(FIELD, Grammar("lark", self.grammar), None))
        if self.structural_tag is not None:
            found.append(_tag(self.structural_tag).to_wanted(FIELD))
        if len(found) != 1:
            kinds = "json, json_object, regex, choice, grammar and structural_tag"
            why = f"one of {kinds} is needed, and only one"
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
    """OpenAI's: what an answer is to be; and vLLM's ``structural_tag``."""

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: NamedSchema | None = None
    structures: list[Structure] | None = None
    triggers: list[str] | None = None

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
                schema = _ANY_OBJECT if schema is None else schema
                try:
                    whole = closed(schema)
                except RecursionError as error:
                    raise invalid(FORMAT, "json_schema.schema: nested too deeply") from error
                checked = check_schema(whole, FORMAT, at="json_schema.schema")
                return _of_compact(cast("Schema", checked))
            case ResponseFormat(type="structural_tag"):
                return StructuralTag(self.structures or [], self.triggers or []).to_wanted(FORMAT)
            case _:
                raise invalid(FORMAT, 'type "json_schema" needs a "json_schema"')


def _tag(tag: StructuralTag | str) -> StructuralTag:
    if not isinstance(tag, str):
        return tag
    try:
        return read_json(tag, StructuralTag)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise invalid(FIELD, f"structural_tag: {error}") from error


def _schema(schema: dict[str, object] | bool | str) -> object:
    if not isinstance(schema, str):
        return schema
    try:
        return read_json(schema, object)
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
    _check_length(*choices)
    if not choices or not all(choices):
        raise invalid(FIELD, "choice needs at least one text, and no empty one")
    # Lark's strings are written as those of JSON.
    either = " | ".join(map(_json, choices))
    return Wanted(FIELD, Grammar("lark", f"start: {either}\n"), [f"{ANSWER}: {either}"])


def _check_length(*texts: str) -> None:
    """Refuse what can only be too long a grammar."""
    if sum(map(len, texts)) > MAX_GRAMMAR:
        raise invalid(FIELD, f"the limit is {MAX_GRAMMAR:,} bytes")


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def wanted(form: ResponseFormat | None, outputs: StructuredOutputs | None) -> Wanted | None:
    """What a text must be that is nothing else; None for any.

    Raises:
        HttpError: 400; both are given, or as ``to_wanted``.
    """
    found = None if form is None else form.to_wanted()
    if outputs is None:
        return found
    if found is not None:
        raise invalid(FIELD, "excludes response_format")
    return outputs.to_wanted()


def checked_grammar(
    kind: Literal["json_schema", "regex", "lark", "without"], source: str, field: str
) -> Grammar:
    """A grammar that a client gives as the engine takes it.

    Raises:
        HttpError: 400; as ``check_schema``.
    """
    if kind == "json_schema":
        try:
            check_schema(read_json(source, object), field, at="source")
        except NestingError as error:
            raise invalid(field, f"source: {error}") from error
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # What is no JSON at all the engine says.
    return Grammar(kind, source)
