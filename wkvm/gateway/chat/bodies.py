"""The body of a chat request, and what it asks of the engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wkvm.gateway.chat.messages import Message, content_text, leaves_space, template_messages
from wkvm.gateway.chat.reading import Reading, as_begun, begun_by, constraint, reading_of
from wkvm.gateway.chat.tools import Tool, ToolChoice, ToolUse, tool_use
from wkvm.gateway.failures import OPENAI_NAMES, invalid
from wkvm.gateway.fields import CommonFields, Integer
from wkvm.gateway.parsing.reader import AnswerReader
from wkvm.gateway.prompts import n_kept
from wkvm.gateway.states.fields import STATE_NAMES
from wkvm.gateway.streams.pieces import TextOptions
from wkvm.gateway.structured import NamedSchema as NamedSchema
from wkvm.gateway.structured import ResponseFormat as ResponseFormat
from wkvm.gateway.structured import Wanted
from wkvm.gateway.text.template import RESERVED
from wkvm.gateway.text.written import ReadMark
from wkvm.gateway.texts import Texts

MAX_TOP_LOGPROBS = 20
MIN_CONSTRAINED_TOKENS = 4096
"""The least limit of an answer that a grammar constrains, where the request names none: cut
off, it is of no use."""


class ChatBody(CommonFields, kw_only=True):
    """What ``/v1/chat/completions`` takes. What becomes of others, ``policy`` says.

    Attributes:
        max_tokens: the older name of ``max_completion_tokens``.
        add_generation_prompt: open an answer after the last message. It is the default, unless
            ``continue_final_message`` is set.
        continue_final_message: let the model go on with the last message.
        echo: an answer begins with the content of the last message, if that is an assistant's.
        prompt_logprobs: vLLM's: how many of the most likely ids are named at each position of
            the prompt, in a field of the answer.
        truncate_prompt_tokens: of the prompt only the last so many ids count; -1 takes as many
            as leave room for the answer.
        parallel_tool_calls: whether an answer may have several calls. It is the default.
        chat_template_kwargs: what the template is given besides, such as ``enable_thinking``.
        reasoning_effort: likewise; ``none`` sets ``enable_thinking`` to false as well.
        include_reasoning: vLLM's: whether reasoning is told. It is the default.
        thinking_token_budget: vLLM's: the most tokens of the reasoning.
    """

    messages: list[Message] | None = None
    max_tokens: Integer | None = None
    max_completion_tokens: Integer | None = None
    logprobs: bool | None = None
    top_logprobs: Integer | None = None
    tools: list[Tool] | None = None
    tool_choice: ToolChoice | None = None
    response_format: ResponseFormat | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    echo: bool | None = None
    prompt_logprobs: Integer | None = None
    truncate_prompt_tokens: Integer | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    reasoning_effort: str | None = None
    include_reasoning: bool | None = None
    thinking_token_budget: Integer | None = None

    @property
    def n_top_logprobs(self) -> int | None:
        """How many of the most likely ids each position names; None if there is nothing to name.

        Raises:
            HttpError: 400; too many, or some without ``logprobs``.
        """
        n_top = self.top_logprobs or 0
        if not 0 <= n_top <= MAX_TOP_LOGPROBS:
            raise invalid("top_logprobs", f"{n_top} is not in [0, {MAX_TOP_LOGPROBS}]")
        if not self.logprobs:
            if n_top:
                raise invalid("top_logprobs", "needs logprobs to be true")
            return None
        return n_top


_PLAIN = Reading()


@dataclass(frozen=True, slots=True)
class Since:
    """A state that may have read how a conversation begins, of a request that has all of it.

    Attributes:
        mark: of what it has read; None for nothing.
        max_model_len: ids of a prompt that comes after it, with its output; None for no limit.
    """

    mark: ReadMark | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """A chat request, ready for the engine.

    Attributes:
        prompt: ids.
        keywords: of ``Client.generate``.
        options: how the ids of an answer become text.
        use: what may be called.
        names: what the body calls the engine's fields; see ``http_error``.
        drops_space: whether the prompt ends in a colon, so that a space at the answer's very
            beginning belongs to the template and not to the answer.
        read: what the model will have read at the end of the prompt, from the very beginning; see
            ``Written.read_bytes``. Of a request with ``since`` alone.
        continues: whether ``prompt`` comes after what ``since`` is of.
        echo: what answers begin with.
        reading: how answers are read.
    """

    prompt: list[int]
    keywords: dict[str, Any]
    options: TextOptions
    use: ToolUse | None
    names: Mapping[str, str]
    drops_space: bool
    read: bytes = b""
    continues: bool = False
    echo: str = ""
    reading: Reading = _PLAIN

    def answer(self) -> AnswerReader:
        """What reads one choice."""
        return self.reading.reader()


def question(
    body: ChatBody,
    texts: Texts,
    *,
    max_model_len: int | None,
    omit_media: bool,
    tail: Sequence[int] = (),
    since: Since | None = None,
) -> Question:
    """Check a request and turn it into what the engine takes. Thread-safe.

    Args:
        max_model_len: ids of a prompt and its output; None for no limit.
        omit_media: see ``template_messages``.
        tail: the last ids of the state that it goes on from; see ``ChatTemplate.encode``.
        since: in place of ``tail``, if ``messages`` are the whole conversation: where its text
            begins with what that has read, the prompt is the rest.

    Raises:
        HttpError: 400; it names the field.
        TemplateError: the template refused the messages.
    """
    try:
        return _question(body, texts, max_model_len, omit_media, tail, since)
    except RecursionError as error:
        raise invalid(None, "the body is nested too deeply") from error


def _question(
    body: ChatBody,
    texts: Texts,
    max_model_len: int | None,
    omit_media: bool,
    tail: Sequence[int],
    since: Since | None,
) -> Question:
    n_top = body.n_top_logprobs
    if body.stream and body.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "not available in a stream")
    use = tool_use(body.tools, body.tool_choice)
    wanted = _wanted(body, use)
    prompt = _prompt(body, texts, use, omit_media=omit_media, tail=tail, since=since)
    if prompt.continues and since is not None:
        max_model_len = since.max_model_len
    limit, default = _limit(body), texts.default_max_tokens
    ids, n = prompt.ids, body.truncate_prompt_tokens
    max_ids = n_kept(n, max_model_len, max_tokens=limit, default=default)
    if max_ids is not None:
        ids = ids[-max_ids:]
    goes_on = body.continues and not body.messages
    reading = reading_of(
        texts,
        use,
        is_single=body.parallel_tool_calls is False,
        begun=_begun(body, texts, prompt.ids, tail),
        in_text=wanted is not None and wanted.rules is None,
    )
    grammar, grammar_field = constraint(
        texts,
        as_begun(reading, texts, _options(body)) if goes_on else reading,
        use,
        wanted,
        budget=body.thinking_token_budget,
    )
    if goes_on:
        reading = replace(reading, is_required=False)
    room = None if max_model_len is None else max_model_len - len(ids)
    if grammar is not None:
        default = max(default, MIN_CONSTRAINED_TOKENS)
    if limit is None:
        limit = default if room is None else max(min(default, room), 1)
    keywords = body.keywords(texts, max_tokens=limit, grammar=grammar)
    keywords |= body.state_keywords(n=body.n_choices)
    if prompt.borders and len(ids) == len(prompt.ids):
        keywords["borders"] = prompt.borders
    if n_top is not None:
        keywords["logprobs"] = n_top
    if body.prompt_logprobs is not None:
        keywords["prompt_logprobs"] = body.prompt_logprobs
    limit_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return Question(
        ids,
        keywords,
        body.text_options(
            logprobs=n_top is not None,
            stops=() if body.ignore_eos else texts.template.stops,
            shown=reading.shown(texts.tokenizer),
        ),
        use,
        {
            **OPENAI_NAMES,
            **STATE_NAMES,
            "prompt": "messages",
            "max_tokens": limit_name,
            "grammar": "bad_words" if grammar is None else grammar_field,
        },
        prompt.drops_space,
        prompt.read,
        prompt.continues,
        _echo(body, omit_media=omit_media) if body.echo else "",
        reading,
    )


def _echo(body: ChatBody, *, omit_media: bool) -> str:
    """What answers begin with: an assistant's last message."""
    if not body.messages or body.messages[-1].role != "assistant":
        return ""
    return content_text(body.messages[-1], len(body.messages) - 1, omit_media=omit_media)


def _limit(body: ChatBody) -> int | None:
    """The limit of the answer that the body names."""
    named = {
        name: value
        for name, value in (
            ("max_completion_tokens", body.max_completion_tokens),
            ("max_tokens", body.max_tokens),
        )
        if value is not None
    }
    for name, value in named.items():
        if value < 1:
            raise invalid(name, f"{value} is not positive")
    if len(set(named.values())) == 2:
        raise invalid("max_tokens", "differs from max_completion_tokens: give one of them")
    return next(iter(named.values()), None)


@dataclass(frozen=True, slots=True)
class _Prompt:
    """A prompt; the fields are those of ``Question``, where ``ids`` is ``prompt``.

    ``borders`` says after how many of the ids messages end.
    """

    ids: list[int]
    drops_space: bool = False
    read: bytes = b""
    continues: bool = False
    borders: Sequence[int] = ()


def _prompt(
    body: ChatBody,
    texts: Texts,
    use: ToolUse | None,
    *,
    omit_media: bool,
    tail: Sequence[int],
    since: Since | None,
) -> _Prompt:
    if body.continues and not body.messages:
        return _Prompt([])  # the answer that the state is in goes on
    template, tokenizer = texts.template, texts.tokenizer
    continues = bool(body.continue_final_message)
    opens = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    if opens and continues:
        raise invalid("continue_final_message", "excludes add_generation_prompt")
    if body.messages is None:
        raise invalid("messages", "is required")
    messages = template_messages(body.messages, template, omit_media=omit_media)
    if use is not None and not template.knows_tools and not tail:
        text = use.instructions()
        if messages[0]["role"] == "system":
            first = messages[0]
            messages[0] = {**first, "content": f"{first['content']}\n{text}"}
        else:
            messages.insert(0, {"role": "system", "content": text})
    written = template.write(
        messages,
        tokenizer,
        tools=use.definitions() if use is not None and template.knows_tools else (),
        add_generation_prompt=opens,
        continue_final_message=continues,
        after=tail,
        options=_options(body),
    )
    ids, read, goes_on = None, b"", False
    if since is not None:
        read = written.read_bytes()
        if since.mark is not None and since.mark.begins(read):
            ids = written.ids_after(since.mark.n_bytes)
            goes_on = bool(ids)
    ids = ids or written.ids()
    if not ids:
        raise invalid("messages", "the chat template makes an empty prompt of them")
    borders = [] if goes_on else written.borders_in(ids)
    return _Prompt(ids, opens and leaves_space(ids, tokenizer), read, goes_on, borders)


def _wanted(body: ChatBody, use: ToolUse | None) -> Wanted | None:
    """What an answer that is no call must be."""
    wanted = None if body.response_format is None else body.response_format.to_wanted()
    if body.structured_outputs is None:
        return wanted
    if use is not None or wanted is not None:
        raise invalid("structured_outputs", "excludes tools and response_format")
    return body.structured_outputs.to_wanted()


def _begun(body: ChatBody, texts: Texts, ids: list[int], tail: Sequence[int]) -> str | None:
    """What of its reasoning the prompt, or a state, ends with; see ``ReasoningForm.begun``."""
    form = texts.reasoning_form
    if form is None:
        return None
    if not body.messages:
        written = texts.tokenizer.decode(tail, skip_special=False)
        return form.opening if form.is_inside(written) else None
    if body.continue_final_message:
        last = content_text(body.messages[-1], len(body.messages) - 1, omit_media=True)
        return form.opening if form.is_inside(last) else None
    return begun_by(ids, form, texts)


def _options(body: ChatBody) -> dict[str, object]:
    """What the template is given besides messages and tools."""
    given = body.chat_template_kwargs or {}
    if reserved := RESERVED & given.keys():
        raise invalid("chat_template_kwargs", f"{min(reserved)} has a field of its own")
    options = dict[str, object]()
    if body.reasoning_effort is not None:
        options["reasoning_effort"] = body.reasoning_effort
        if body.reasoning_effort == "none":
            options["enable_thinking"] = False
    return {**options, **given}
