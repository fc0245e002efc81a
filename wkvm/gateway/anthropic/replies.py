"""The JSON of Anthropic's answers, whole and in events."""

from typing import Literal, TypeAlias

import msgspec
from msgspec.json import encode

from wkvm.gateway.chat_jobs import ChatJob
from wkvm.gateway.chat_replies import ChatFinishReason, ChoiceReader
from wkvm.gateway.pieces import Finish, Piece, Whole
from wkvm.gateway.replies import Usage as ChatUsage

StopReason: TypeAlias = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]

_REASONS: dict[ChatFinishReason, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class Usage(msgspec.Struct, kw_only=True):
    """What a message cost, in tokens.

    Attributes:
        input_tokens: of the prompt, those that were computed for it.
        cache_read_input_tokens: of the prompt, those that were not.
    """

    input_tokens: int
    output_tokens: int
    cache_creation: None = None
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int
    inference_geo: None = None
    output_tokens_details: None = None
    server_tool_use: None = None
    service_tier: str = "standard"


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """Text of an answer."""

    text: str
    citations: None = None


class Caller(msgspec.Struct):
    """Who calls a tool: the model."""

    type: str = "direct"


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """A tool call."""

    id: str
    name: str
    input: msgspec.Raw
    caller: Caller = msgspec.field(default_factory=Caller)


class Reply(msgspec.Struct, kw_only=True):
    """A message of the model; as it begins, in the first event of a stream."""

    id: str
    type: str = "message"
    role: str = "assistant"
    model: str
    content: list[TextBlock | ToolUseBlock]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None
    usage: Usage


class CountedTokens(msgspec.Struct):
    """The answer to ``/v1/messages/count_tokens``."""

    input_tokens: int


class _MessageDelta(msgspec.Struct, kw_only=True):
    stop_reason: StopReason
    stop_sequence: str | None
    stop_details: None = None
    container: None = None


def _event(kind: str, **fields: object) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (kind.encode(), encode({"type": kind, **fields}))


PING = _event("ping")
"""An event that says nothing, but that the connection is alive."""
_STOP = _event("message_stop")
_EMPTY = msgspec.Raw(b"{}")


class Replier:
    """Writes the answer to one request: whole, or in events.

    Args:
        name: the id of the message.
        model: the name of the model.
    """

    def __init__(self, job: ChatJob, name: str, model: str) -> None:
        self._job = job
        self._name = name
        self._model = model
        self._reader = job.reader()
        self._has_begun = False
        self._n_blocks = 0
        self._open: Literal["text", "tool_use"] | None = None
        self._delta = b""

    def whole(self, whole: Whole) -> bytes:
        """The answer that is not streamed."""
        deltas = self._reader.read(whole.text, whole.finish)
        content = list[TextBlock | ToolUseBlock]()
        if text := "".join([delta.text for delta in deltas]):
            content.append(TextBlock(text))
        if self._reader.name is not None:
            arguments = "".join([delta.arguments for delta in deltas])
            made = ToolUseBlock(_call_id(self._reader), self._reader.name, _object(arguments))
            content.append(made)
        reply = self._reply(content, self._usage(whole.finish))
        end = self._end(whole.finish)
        reply.stop_reason, reply.stop_sequence = end.stop_reason, end.stop_sequence
        return encode(reply)

    # --- events ------------------------------------------------------------------------------

    def begin(self) -> bytes:
        """The first events of a stream, once."""
        if self._has_begun:
            return b""
        self._has_begun = True
        n_prompt = len(self._job.question.prompt)
        usage = Usage(input_tokens=n_prompt, output_tokens=0, cache_read_input_tokens=0)
        return _event("message_start", message=self._reply([], usage)) + PING

    def piece(self, piece: Piece) -> bytes:
        """The events, if any, that a piece of the answer becomes; the last one's are the end."""
        events = list[bytes]()
        for delta in self._reader.read(piece.text, piece.finish):
            if delta.text:
                if self._open != "text":
                    events.append(self._block("text", TextBlock("")))
                events.append(self._of_block(delta.text))
            if delta.name is not None:
                call = ToolUseBlock(_call_id(self._reader), delta.name, _EMPTY)
                events.append(self._block("tool_use", call))
            if delta.arguments:
                events.append(self._of_block(delta.arguments))
        if events or piece.finish is not None:
            events.insert(0, self.begin())
        if piece.finish is not None:
            events += [self._close(), self._last(piece.finish), _STOP]
        return b"".join(events)

    def _block(self, kind: Literal["text", "tool_use"], block: TextBlock | ToolUseBlock) -> bytes:
        """The beginning of a block, and the end of the one before."""
        end, index = self._close(), self._n_blocks
        self._open = kind
        self._n_blocks += 1
        form, name = ("text_delta", "text") if kind == "text" else _JSON_DELTA
        # Encoded once: there are as many of these as tokens.
        self._delta = (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"%b","%b":' % (index, form.encode(), name.encode())
        )
        return end + _event("content_block_start", index=index, content_block=block)

    def _of_block(self, text: str) -> bytes:
        return b"%b%b}}\n\n" % (self._delta, encode(text))

    def _close(self) -> bytes:
        if self._open is None:
            return b""
        self._open = None
        return _event("content_block_stop", index=self._n_blocks - 1)

    def _last(self, finish: Finish) -> bytes:
        return _event("message_delta", delta=self._end(finish), usage=self._usage(finish))

    # --- what both have ----------------------------------------------------------------------

    def _reply(self, content: list[TextBlock | ToolUseBlock], usage: Usage) -> Reply:
        return Reply(id=self._name, model=self._model, content=content, usage=usage)

    def _end(self, finish: Finish) -> _MessageDelta:
        stop = self._job.stop_reason(finish)
        if isinstance(stop, str):
            return _MessageDelta(stop_reason="stop_sequence", stop_sequence=stop)
        reason = _REASONS[self._reader.finish_reason]
        return _MessageDelta(stop_reason=reason, stop_sequence=None)

    def _usage(self, finish: Finish) -> Usage:
        return _usage(self._job.usage([finish], [finish.state]))


_JSON_DELTA = ("input_json_delta", "partial_json")


def _usage(cost: ChatUsage) -> Usage:
    n_cached = cost.prompt_tokens_details.cached_tokens
    return Usage(
        input_tokens=cost.prompt_tokens - n_cached,
        output_tokens=cost.completion_tokens,
        cache_read_input_tokens=n_cached,
    )


def _call_id(reader: ChoiceReader) -> str:
    return f"toolu_{reader.call_id.removeprefix('call_')}"


def _object(arguments: str) -> msgspec.Raw:
    """The arguments of a call as they were written; of one that was cut off, none."""
    try:
        msgspec.json.decode(arguments, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _EMPTY
    return msgspec.Raw(arguments.encode())
