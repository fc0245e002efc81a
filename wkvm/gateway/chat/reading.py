"""How the answers of a chat are read, and what constrains them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wkvm_client import Grammar

from wkvm.gateway.chat.tools import ToolUse
from wkvm.gateway.failures import invalid
from wkvm.gateway.parsing import grammar as grammars
from wkvm.gateway.parsing.events import Calls
from wkvm.gateway.parsing.forms import ReasoningForm, ToolForm
from wkvm.gateway.parsing.reader import AnswerReader, CallReader, ReasoningReader
from wkvm.gateway.schemas import Schema
from wkvm.gateway.structured import Wanted
from wkvm.gateway.text.tokenizer import Tokenizer
from wkvm.gateway.texts import Texts

MAX_TAIL = 64
"""Ids at the end of a prompt that are looked at for the beginning of reasoning."""
MAX_BUDGET = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How the answers of one request are read.

    Attributes:
        form: how calls are written; None if nothing may be called.
        offered: what may be: see ``ToolUse.offered``.
        is_single: an answer has one call at most.
        is_required: it has nothing but calls.
        reasoning: how reasoning is written; None if the answer has none.
        begun: what of it the prompt ends with.
        is_all_text: what constrains the answer says all of it: it has no reasoning.
    """

    form: ToolForm | None = None
    offered: Mapping[str, Schema] | None = None
    is_single: bool = False
    is_required: bool = False
    reasoning: ReasoningForm | None = None
    begun: str = ""
    is_all_text: bool = False

    def reader(self) -> AnswerReader:
        """What reads one answer."""
        reader = AnswerReader()
        if self.form is not None:
            calls = Calls(self.offered or {})
            reader = CallReader(
                calls,
                self.form.openings,
                is_single=self.is_single,
                is_required=self.is_required,
            )
        if self.reasoning is not None:
            reader = ReasoningReader(
                reader,
                opening=self.reasoning.opening,
                closing=self.reasoning.closing,
                begun=self.begun,
            )
        return reader

    def shown(self, tokenizer: Tokenizer) -> frozenset[int]:
        """The special tokens that readers have to see."""
        words = "" if self.form is None else self.form.words
        if self.reasoning is not None:
            words += self.reasoning.opening + self.reasoning.closing
        names = tokenizer.special_by_name
        return frozenset(token_id for name, token_id in names.items() if name in words)


def begun_by(prompt: Sequence[int], form: ReasoningForm, texts: Texts) -> str | None:
    """What of its reasoning a prompt ends with: see ``ReasoningForm.begun``."""
    return form.begun(texts.tokenizer.decode(prompt[-MAX_TAIL:], skip_special=False))


def as_begun(reading: Reading, texts: Texts, options: Mapping[str, object]) -> Reading:
    """How an answer is read from its beginning on, of a request that goes on with it.

    What constrains it is the same as then, so that it goes on within that.

    Args:
        options: of the template, the same as then.
    """
    form = texts.reasoning_form
    if form is None or reading.is_all_text:
        return reading
    opened = texts.template.render([{"role": "user", "content": "."}], options=options)
    begun = form.begun(opened)
    return replace(reading, reasoning=None if begun is None else form, begun=begun or "")


def reading_of(
    texts: Texts, use: ToolUse | None, *, is_single: bool, begun: str | None, in_text: bool
) -> Reading:
    """How answers are read.

    Args:
        use: what may be called.
        is_single: tell of one call at most.
        begun: what of its reasoning the prompt ends with; None if the answer has none.
        in_text: what constrains the answer says all of it: there is no reasoning.
    """
    reasoning = None if begun is None or in_text else texts.reasoning_form
    return Reading(
        form=None if use is None else texts.tool_form,
        offered=None if use is None else use.offered(),
        is_single=is_single,
        is_required=use is not None and use.is_required,
        reasoning=reasoning,
        begun=begun or "",
        is_all_text=in_text,
    )


def constraint(
    texts: Texts,
    reading: Reading,
    use: ToolUse | None,
    wanted: Wanted | None,
    *,
    budget: int | None = None,
) -> tuple[Grammar | None, str]:
    """What constrains an answer, if anything does, and the field that says so.

    Args:
        reading: how it is read.
        use: what may be called.
        wanted: what an answer must be that is no call.
        budget: the most tokens of its reasoning.

    Raises:
        HttpError: 400; the budget cannot be kept.
    """
    tokenizer, reasoning = texts.tokenizer, reading.reasoning
    _check_budget(budget, texts)
    starts, rules, field = list[str](), list[str](), ""
    if use is not None and (use.is_required or wanted is not None):
        starts, field = ["calls"], "tools"
        rules += texts.tool_form.grammar(
            use.called(),
            lambda text: grammars.literal(text, tokenizer),
            many=not reading.is_single,
        )
    if wanted is not None and (use is None or not use.is_required):
        field = wanted.field
        if not starts and reasoning is None:
            return wanted.grammar, field
        assert wanted.rules is not None, "what has no rules is read as it is"
        starts, rules = [*starts, grammars.ANSWER], [*rules, *wanted.rules]
    if budget is not None and reasoning is not None and not starts:
        field = "thinking_token_budget"
        starts, rules = [grammars.ANSWER], [grammars.any_text(tokenizer)]
    if not starts:
        return None, ""
    source = grammars.whole(
        rules, starts, tokenizer, reasoning=reasoning, begun=reading.begun, budget=budget
    )
    return Grammar("lark", source), field


def _check_budget(budget: int | None, texts: Texts) -> None:
    if budget is None:
        return
    field, form = "thinking_token_budget", texts.reasoning_form
    if not 0 <= budget <= MAX_BUDGET:
        raise invalid(field, f"{budget} is not in [0, {MAX_BUDGET}]")
    if form is not None and grammars.closing_id(form, texts.tokenizer) is None:
        raise invalid(field, f"not supported: to this model {form.closing!r} is not one token")
