"""What a completion must be, as vLLM's ``structured_outputs`` says it, made a grammar."""

import msgspec
from wkvm_client import Grammar

from wkvm.gateway.failures import invalid

FIELD = "structured_outputs"


class StructuredOutputs(msgspec.Struct, kw_only=True):
    """Exactly one of these counts. Other fields are ignored.

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

    def to_grammar(self) -> Grammar:
        """What the engine is asked for.

        Raises:
            HttpError: 400; none is named, or several, or one that makes no grammar.
        """
        if self.structural_tag is not None:
            raise invalid(FIELD, "structural_tag is not supported")
        found = list[Grammar]()
        if self.json is not None:
            found.append(Grammar("json_schema", _schema(self.json)))
        if self.json_object:
            found.append(Grammar("json_schema", '{"type":"object"}'))
        if self.regex is not None:
            found.append(Grammar("regex", self.regex))
        if self.choice is not None:
            found.append(Grammar("lark", _one_of(self.choice)))
        if self.grammar is not None:
            found.append(Grammar("lark", self.grammar))
        if len(found) != 1:
            why = "one of json, json_object, regex, choice and grammar is needed, and only one"
            raise invalid(FIELD, why)
        return found[0]


def _schema(schema: dict[str, object] | bool | str) -> str:
    return schema if isinstance(schema, str) else msgspec.json.encode(schema).decode()


def _one_of(choices: list[str]) -> str:
    if not choices or not all(choices):
        raise invalid(FIELD, "choice needs at least one text, and no empty one")
    # Lark's strings are written as those of JSON.
    return "start: " + " | ".join(msgspec.json.encode(text).decode() for text in choices) + "\n"
