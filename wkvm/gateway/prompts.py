"""The prompts of a completion: one or many, as text or as ids."""

from dataclasses import dataclass
from typing import TypeAlias

from wkvm.gateway.errors import UnknownTokenError
from wkvm.gateway.failures import invalid
from wkvm.gateway.text import Tokenizer

PromptField: TypeAlias = str | list[str | int | list[int]]
"""Text, ids, or a list of one of these. What else the type allows is refused by ``parse``."""


@dataclass(slots=True)
class Prompt:
    """One prompt. ``text`` is what was given, if that was text and nothing was cut from it."""

    ids: list[int]
    text: str | None

    def shown(self, tokenizer: Tokenizer) -> str:
        """The text as an echo shows it, with special tokens by name.

        Raises:
            HttpError: 400; an id has no text.
        """
        if self.text is not None:
            return self.text
        try:
            return tokenizer.decode(self.ids, skip_special=False)
        except UnknownTokenError as error:
            raise invalid("prompt", str(error)) from error


ALL_THAT_FIT = -1
"""A ``truncate_prompt_tokens`` that says: as many as there is room for."""


def n_kept(
    n: int | None, max_model_len: int | None, *, max_tokens: int | None = 0, default: int = 0
) -> int | None:
    """How many ids of each prompt count, by ``truncate_prompt_tokens``; None for all.

    Args:
        n: of the body; see ``ALL_THAT_FIT``.
        max_model_len: of a prompt and its output; None for no limit.
        max_tokens: of the output; None if the body names no limit. Then it is to have room for the
            default, but for half of all at most.

    Raises:
        HttpError: 400; it is neither positive nor -1.
    """
    if n == ALL_THAT_FIT:
        if max_model_len is None:
            return None
        n_output = min(default, max_model_len // 2) if max_tokens is None else max_tokens
        # One id stays where the output alone is too long: the engine then says so.
        return max(max_model_len - n_output, 1)
    if n is not None and n < 1:
        raise invalid("truncate_prompt_tokens", f"{n} is neither positive nor -1")
    return n


def read_prompts(
    given: PromptField | None,
    tokenizer: Tokenizer,
    *,
    max_prompts: int,
    max_ids: int | None,
    may_be_empty: bool = False,
    field: str = "prompt",
) -> list[Prompt]:
    """The prompts of a body. The names of special tokens in them stand for these tokens.

    Cost: some MB of text a second.

    Args:
        max_ids: of each prompt the last so many count; None takes all.
        may_be_empty: whether there is something to go on from without a prompt. Then none is
            an empty one.
        field: what the body calls them.

    Raises:
        HttpError: 400; there is none, there are too many, or texts and ids are mixed.
    """
    if may_be_empty and (given is None or given == [] or given == ""):
        return [Prompt([], "")]
    found = _parse(given, field)
    if len(found) > max_prompts:
        why = f"{len(found)} prompts; with this n at most {max_prompts} are allowed"
        raise invalid(field, why)
    return [_prompt(one, tokenizer, max_ids, field) for one in found]


def _prompt(
    given: str | list[int], tokenizer: Tokenizer, max_ids: int | None, field: str
) -> Prompt:
    text = None
    if isinstance(given, str):
        text, ids = given, tokenizer.encode(given, special=True)
    else:
        ids = given
    if not ids:
        raise invalid(field, "a prompt needs at least one token")
    if max_ids is not None and len(ids) > max_ids:
        text, ids = None, ids[-max_ids:]
    return Prompt(ids, text)


def _parse(given: PromptField | None, field: str) -> list[str] | list[list[int]]:
    if given is None:
        raise invalid(field, "is required")
    if isinstance(given, str):
        return [given]
    if not given:
        raise invalid(field, "an empty list")
    texts = [one for one in given if isinstance(one, str)]
    ids = [one for one in given if isinstance(one, int)]
    lists = [one for one in given if isinstance(one, list)]
    if len(texts) == len(given):
        return texts
    if len(ids) == len(given):
        return [ids]
    if len(lists) == len(given):
        return lists
    raise invalid(field, "a list holds texts, ids or lists of ids, but not several of these")
