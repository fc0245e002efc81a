"""The grammar of a whole answer: its reasoning, then calls, or what else it must be.

In the Lark notation of llguidance. Names of special tokens are written as the ids that they are:
no text stands for them.
"""

import msgspec

from wkvm.gateway.parsing.forms import ReasoningForm
from wkvm.gateway.text.tokenizer import Tokenizer

ANSWER = "answer"
"""The rule of an answer that is no call."""
_SPACE = r"/[ \n\r\t]{0,4}/"


def literal(text: str, tokenizer: Tokenizer) -> str:
    """Text as a grammar has it; nothing for none."""
    runs = tokenizer.split_specials(text)
    return " ".join([f"<[{run}]>" if isinstance(run, int) else _quoted(run) for run in runs if run])


def any_text(tokenizer: Tokenizer) -> str:
    """A rule ``answer`` that allows all, special tokens too."""
    ids = sorted(tokenizer.special_by_name.values())
    specials = f" | <[{','.join(map(str, ids))}]>" if ids else ""
    return f"{ANSWER}: (/(?s:.+)/{specials})*"


def whole(
    rules: list[str],
    starts: list[str],
    tokenizer: Tokenizer,
    *,
    reasoning: ReasoningForm | None = None,
    begun: str = "",
    budget: int | None = None,
) -> str:
    """A grammar.

    Args:
        rules: of what comes after the reasoning.
        starts: which of them it may begin with.
        tokenizer: of the model.
        reasoning: how the model writes that; None if it does not think.
        begun: what of that the prompt ends with; see ``ReasoningForm.begun``.
        budget: the most tokens that the reasoning may have; None for any number. The closing must
            then be one token: see ``closing_id``.
    """
    either = " | ".join(starts)
    if reasoning is None:
        return "\n".join([f"start: {either}", *rules, ""])
    opening = literal(reasoning.opening.removeprefix(begun), tokenizer)
    thinks = f"{opening} reasoning {_SPACE}"
    lines = [f"start: {thinks if begun else f'({thinks})?'} ({either})"]
    closing = closing_id(reasoning, tokenizer)
    is_special = reasoning.closing in tokenizer.special_by_name
    if closing is not None and (is_special or budget is not None):
        limit = "" if budget is None else f"[max_tokens={budget}]"
        lines += [f"reasoning: thought <[{closing}]>", f"thought{limit}: /(?s:.*)/"]
    else:
        lines.append(f"reasoning[suffix={_quoted(reasoning.closing)}]: /(?s:.*)/")
    return "\n".join([*lines, *rules, ""])


def closing_id(reasoning: ReasoningForm, tokenizer: Tokenizer) -> int | None:
    """The token that closes reasoning, if it is one."""
    ids = tokenizer.encode(reasoning.closing, special=True)
    return ids[0] if len(ids) == 1 else None


def _quoted(text: str) -> str:
    # Lark's strings are written as those of JSON.
    return msgspec.json.encode(text).decode()
