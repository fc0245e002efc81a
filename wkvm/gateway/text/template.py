"""Chat templates: messages to the text, and the ids, of a prompt.

Templates come from the operator, with the model. They are compiled by Jinja's immutable
sandbox with the settings that Hugging Face's templates are written for. Clients bring
messages, never templates.
"""

import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn, TypeAlias, cast

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.sandbox

from wkvm.gateway.errors import TemplateError, UnknownTokenError
from wkvm.gateway.text.borders import borders_of, n_shared
from wkvm.gateway.text.template_tags import Generation
from wkvm.gateway.text.tokenizer import Tokenizer
from wkvm.gateway.text.written import Written

Message: TypeAlias = Mapping[str, object]
"""A chat message as the OpenAI API has it: ``role``, ``content``, perhaps more."""

RESERVED = frozenset(("messages", "tools", "add_generation_prompt"))
"""What a template is given that no option may be called."""
NO_OPTIONS: Mapping[str, object] = {}

WORLD_TEMPLATE = """\
{%- for message in messages -%}
{%- set text = message['content'].replace('\\r\\n', '\\n').strip() -%}
{%- set text = text.split('\\n') | select | join('\\n') -%}
{%- if message['role'] == 'system' -%}{{ 'System: ' + text }}
{%- elif message['role'] == 'user' -%}{{ 'User: ' + text }}
{%- elif message['role'] == 'assistant' -%}{{ 'Assistant: ' + message['content'].strip() }}
{%- else -%}{{ raise_exception('unknown role: ' + message['role']) }}
{%- endif -%}
{{ '\\n\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ 'Assistant:' }}
{%- if enable_thinking is defined and enable_thinking -%}{{ ' <think' }}{%- endif -%}
{%- endif -%}
"""
"""For RWKV World models, which bring none. An empty line ends a turn, so users' are dropped. Those
that think are asked to by the beginning of the word that opens it."""

WORLD_STOPS = ("\n\nUser:", "\n\nSystem:")
"""Where an answer of such a model ends, if it goes on to write the next turn."""

_CUT = "\ufdd2"
"""Stands where a prompt is to end that the model continues, and where one begins that continues
a state."""
_ANSWERED: Sequence[Message] = (
    {"role": "user", "content": "."},
    {"role": "assistant", "content": _CUT},
)
"""Stands for what a state has absorbed: some templates want a user's turn before an answer."""


class ChatTemplate:
    """A compiled template. Immutable and thread-safe.

    Attributes:
        source: Jinja.
        variables: what it may name besides the messages, such as ``eos_token``.
        stops: strings that end an answer besides the model's own end ids.
        knows_tools: whether it writes tools, their calls and their results by itself.
        knows_developer: whether it may know the role ``developer``.
    """

    def __init__(
        self,
        source: str,
        *,
        variables: Mapping[str, str] | None = None,
        stops: tuple[str, ...] = (),
    ) -> None:
        """Compile a template.

        Args: as the attributes.

        Raises:
            TemplateError: it does not compile.
        """
        self.source = source
        self.variables: Mapping[str, str] = dict(variables or {})
        self.stops = stops
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
        )
        # Jinja's own types leave the values of both dicts unknown.
        environment.filters["tojson"] = _to_json  # pyright: ignore[reportUnknownMemberType]
        environment.globals.update(  # pyright: ignore[reportUnknownMemberType]
            raise_exception=_raise_exception, strftime_now=_strftime_now
        )
        try:
            names = jinja2.meta.find_undeclared_variables(environment.parse(source))
            self._template = environment.from_string(source)
        except Exception as error:  # Jinja leaves much to Python's compiler, and what that raises
            raise TemplateError(f"the chat template does not compile: {error}") from error
        self.knows_tools = "tools" in names
        self.knows_developer = "developer" in source

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Message] = (),
        add_generation_prompt: bool = True,
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> str:
        """The text of a prompt. Cost: some hundred microseconds.

        Args:
            messages: the conversation so far.
            tools: as the OpenAI API has them, for a template that knows what they are.
            add_generation_prompt: end with the opening of the assistant's answer.
            options: what else the template may name, such as ``enable_thinking``. None of
                ``RESERVED`` is among them.

        Raises:
            TemplateError: the template refused the messages or failed on them.
        """
        try:
            return self._template.render(
                messages=messages,
                tools=list(tools) or None,
                add_generation_prompt=add_generation_prompt,
                **{**options, **self.variables},
            )
        except jinja2.TemplateError as error:
            raise TemplateError(f"chat template: {error}") from error
        except Exception as error:
            # Python's own errors within expressions: a content that is None, a division by 0.
            raise TemplateError(f"chat template: {type(error).__name__}: {error}") from error

    def encode(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Message] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        after: Sequence[int] = (),
        between: bool = False,
    ) -> list[int]:
        """The ids of a prompt: of the text that ``render`` gives. As ``write``."""
        return self.write(
            messages,
            tokenizer,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
            after=after,
            between=between,
        ).ids()

    def write(
        self,
        messages: Sequence[Message],
        tokenizer: Tokenizer,
        *,
        tools: Sequence[Message] = (),
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        after: Sequence[int] = (),
        between: bool = False,
        options: Mapping[str, object] = NO_OPTIONS,
    ) -> Written:
        """A prompt: the text that ``render`` gives.

        Names of special tokens that the template writes become these tokens. In the
        messages and tools they stay plain text: a user cannot forge the end of a turn.

        Args:
            messages, tools, add_generation_prompt, options: as of ``render``.
            continue_final_message: end right after the content of the last message, which
                the model then continues.
            after: the last ids of the state that the prompt continues, those that wait to be fed
                included. The prompt is then what comes after an answer: what closes it, as far as
                the state does not end so already, and ``messages``. None: nothing was absorbed.
            between: end where another message may begin, whosever; instead of
                ``add_generation_prompt``.

        Raises:
            TemplateError: the template refused the messages or failed on them, or does not
                write the content of the message to be continued.
        """
        plain = list[str]()
        pattern = tokenizer.special_pattern

        def hide(found: re.Match[str]) -> str:
            plain.append(found.group())
            return f"\ufdd0{len(plain) - 1}\ufdd1"

        # U+FDD0 to U+FDD2 are no characters. Text that has them all the same is hidden too.
        guard = re.compile("[\ufdd0-\ufdd2]" + (f"|{pattern.pattern}" if pattern else ""))

        def hide_all(text: str) -> str:
            return guard.sub(hide, text)

        hidden = cast("list[Message]", _map_strings(messages, hide_all))
        hidden_tools = cast("list[Message]", _map_strings(tools, hide_all))
        hidden_options = cast("Message", _map_strings(options, hide_all))
        if continue_final_message:
            last = hidden[-1]
            hidden[-1] = {**last, "content": f"{last['content']}{_CUT}"}
        if after:
            hidden = [*_ANSWERED, *hidden]
        if between:
            text = self._common_start(hidden, pattern)
        else:
            text = self.render(
                hidden,
                tools=hidden_tools,
                add_generation_prompt=add_generation_prompt,
                options=hidden_options,
            )
        if after:
            text = _after_cut(text)
            text = text.removeprefix(self._closed(after, tokenizer))
        if continue_final_message:
            end = text.rfind(_CUT)
            if end < 0:
                raise TemplateError("chat template: the last message cannot be continued")
            text = text[:end]
        borders = list[int]()
        if not after:
            borders = borders_of(
                text,
                hidden,
                lambda part: self.render(
                    part, tools=hidden_tools, add_generation_prompt=False, options=hidden_options
                ),
            )
        return Written(text, plain, tokenizer, borders)

    def _closed(self, after: Sequence[int], tokenizer: Tokenizer) -> str:
        """How much of what closes an answer a state ends with already."""
        special = tokenizer.special_pattern
        closing = _after_cut(self._common_start(_ANSWERED, special))
        asked = _after_cut(self._common_start([{"role": "user", "content": _CUT}], special))
        shared = closing[len(closing) - n_shared(closing[::-1], asked[::-1]) :]
        if shared and _ends_with(after, shared, tokenizer):
            # It is between turns, whosever the last one was.
            return closing
        parts = (closing[:end] for end in range(len(closing), 0, -1))
        part = next((part for part in parts if _ends_with(after, part, tokenizer)), "")
        ends = special.finditer(closing) if special is not None and not part else ()
        for found in ends:
            if after[-1] == tokenizer.special_by_name[found.group()]:
                return closing[: found.end()]  # the model left out what is written before its end
        return part

    def _common_start(self, messages: Sequence[Message], special: re.Pattern[str] | None) -> str:
        """The text of messages, and of what follows them whatever that is."""
        answer = self.render(messages)
        asked: Message = {"role": "user", "content": "."}
        try:
            question = self.render([*messages, asked])
        except TemplateError:
            return self.render(messages, add_generation_prompt=False)  # one user's turn, no more
        end = n_shared(answer, question)
        with contextlib.suppress(TemplateError):  # it may want turns to alternate
            # Some write an answer otherwise while nothing follows it: with what was thought before.
            more = self.render([*messages, {"role": "assistant", "content": ","}, asked])
            end = max(end, n_shared(more, question))
        for found in special.finditer(question) if special is not None else ():
            if found.start() < end < found.end():
                end = found.start()
        return question[:end]


def _after_cut(text: str) -> str:
    start = text.find(_CUT)
    if start < 0:
        raise TemplateError("chat template: what follows a message cannot be told")
    return text[start + 1 :]


def _ends_with(ids: Sequence[int], text: str, tokenizer: Tokenizer) -> bool:
    """Whether ids end with a text. Characters that spell a special token's name are not it."""
    special = tokenizer.special_pattern
    if special is not None and special.search(text):
        last = tokenizer.encode(text, special=True)
        return list(ids[-len(last) :]) == last
    return b"".join([_plain_bytes(token_id, tokenizer) for token_id in ids]).endswith(text.encode())


def _plain_bytes(token_id: int, tokenizer: Tokenizer) -> bytes:
    """The bytes of an id that is plain text; a NUL for any other."""
    if token_id in tokenizer.special_ids:
        return b"\0"
    try:
        return tokenizer.token_bytes(token_id)
    except UnknownTokenError:
        return b"\0"  # a model's vocabulary may be padded


def _map_strings(value: object, change: Callable[[str], str]) -> object:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value)
        return {change(key): _map_strings(entry, change) for key, entry in entries.items()}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [_map_strings(entry, change) for entry in cast("Sequence[object]", value)]
    return value


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now().strftime(pattern)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which prompts are not.
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )
