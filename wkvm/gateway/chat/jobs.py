"""A chat of any interface on its way through the engine.

Every interface that has chats turns what it is sent into a ``ChatBody``, and writes in its own
format what the readers of a ``ChatJob`` say. What lies between is the same for all of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wkvm_client.states import StateEnd

from wkvm.gateway.calls import Call
from wkvm.gateway.chat.bodies import ChatBody, Question, question
from wkvm.gateway.chat.replies import ChoiceReader
from wkvm.gateway.failures import invalid
from wkvm.gateway.prompts import ALL_THAT_FIT
from wkvm.gateway.replies import Usage, n_reused
from wkvm.gateway.states.fields import NO_ORIGIN, n_cached
from wkvm.gateway.states.keeping import choice_text, origin_of, room_after
from wkvm.gateway.streams.choices import Lanes
from wkvm.gateway.streams.pieces import ChoiceText, Finish
from wkvm.gateway.texts import Texts


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatJob:
    """A chat that was checked as far as the gateway can.

    Attributes:
        question: what the engine is asked, with ``Lanes.open``.
    """

    body: ChatBody
    texts: Texts
    question: Question

    def choice_texts(self, lanes: Lanes) -> list[ChoiceText]:
        """Readers of all choices as texts."""
        options = self.question.options
        return [choice_text(one, self.texts, options, self.body) for one in lanes.streams]

    def reader(self) -> ChoiceReader:
        """What tells reasoning, text and calls of a choice apart."""
        return ChoiceReader(
            self.question.answer(),
            drops_space=self.question.drops_space,
            hides_reasoning=self.body.include_reasoning is False,
        )

    def stop_reason(self, finish: Finish) -> str | int | None:
        """What of the request ended a choice; None for an end of the model or its template."""
        reason = self.body.stop_reason(finish.stop_reason)
        return None if isinstance(reason, str) and reason not in self.body.stops else reason

    def usage(self, finishes: Sequence[Finish], ends: Sequence[StateEnd | None]) -> Usage:
        """What all choices cost."""
        lengths = [finish.n_output for finish in finishes]
        reused = n_reused(finishes, len(finishes))
        return Usage.of([len(self.question.prompt)], lengths, n_cached(ends[:1]), reused)


async def chat_job(call: Call, body: ChatBody) -> ChatJob:
    """Check a chat, and make its prompt; a long one in a thread of its own.

    From then on the call's errors name the fields as the body does.

    Args:
        call: whose body was read.
        body: as it was sent, or made from what another interface sends.

    Raises:
        HttpError: 400 or 404.
        ClientError: the state that it goes on from is not there, or the engine is not.
        TemplateError: the template refused the messages.
    """
    gateway = call.gateway
    if body.model is None:
        raise invalid("model", "is required")
    gateway.check_model(body.model)
    origin, max_model_len = NO_ORIGIN, gateway.max_model_len
    if body.continues:
        origin = await origin_of(call.client, body, pins=True)
        has_limit = body.max_tokens is not None or body.max_completion_tokens is not None
        if not has_limit or body.truncate_prompt_tokens == ALL_THAT_FIT:
            max_model_len = await room_after(call.client, origin, max_model_len)
    asked = await gateway.offload.run(
        lambda: question(
            body,
            gateway.texts,
            max_model_len=max_model_len,
            omit_media=gateway.config.omit_media,
            tail=origin.tail,
        ),
        size=call.n_held,
    )
    call.names = asked.names
    return ChatJob(body=body, texts=gateway.texts, question=asked)
