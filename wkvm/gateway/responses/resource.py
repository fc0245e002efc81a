"""The JSON of a response: what every answer and most events say of it."""

import time
from typing import Any, TypeAlias

from wkvm_client.states import StateEnd

from wkvm.gateway.failures import HttpError
from wkvm.gateway.responses.bodies import ChosenTool, CreateBody, told_tools
from wkvm.gateway.responses.items import Kept

Resource: TypeAlias = dict[str, Any]
"""A response in the API's own form. What was made of it is not changed by what is made later."""

FINAL = frozenset(("completed", "incomplete", "failed", "cancelled"))
"""Statuses after which nothing changes any more."""


def begun(body: CreateBody, response_id: str, *, model: str) -> Resource:
    """A response that has just been asked for."""
    reasoning = body.reasoning
    choice = body.tool_choice
    if isinstance(choice, ChosenTool):
        choice_told: Any = {"type": choice.type, "name": choice.name}
    else:
        choice_told = choice or "auto"
    conversation = body.conversation_id
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "queued" if body.background else "in_progress",
        "background": bool(body.background),
        "conversation": None if conversation is None else {"id": conversation},
        "error": None,
        "frequency_penalty": body.frequency_penalty or 0.0,
        "incomplete_details": None,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "metadata": body.metadata or {},
        "model": model,
        "output": [],
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "presence_penalty": body.presence_penalty or 0.0,
        "previous_response_id": body.previous_response_id,
        "prompt_cache_key": body.prompt_cache_key,
        "reasoning": {
            "effort": None if reasoning is None else reasoning.effort,
            "summary": None if reasoning is None else reasoning.summary,
        },
        "safety_identifier": body.safety_identifier,
        "service_tier": "default",
        "store": body.stores,
        "temperature": 1.0 if body.temperature is None else body.temperature,
        "text": _text(body),
        "tool_choice": choice_told,
        "tools": told_tools(body.tools),
        "top_logprobs": body.top_logprobs or 0,
        "top_p": 1.0 if body.top_p is None else body.top_p,
        "truncation": body.truncation or "disabled",
        "usage": None,
        "user": body.user,
    }


def _text(body: CreateBody) -> dict[str, Any]:
    config = body.text
    form = None if config is None else config.format
    told: dict[str, Any] = {"type": "text" if form is None else form.type}
    if form is not None and form.type == "json_schema":
        told |= {
            "name": form.name,
            "description": form.description,
            "schema": form.schema,
            "strict": bool(form.strict),
        }
    verbosity = None if config is None else config.verbosity
    return {"format": told, "verbosity": verbosity or "medium"}


def ended(
    resource: Resource,
    status: str,
    output: list[Kept],
    *,
    usage: dict[str, Any] | None = None,
    reason: str | None = None,
    error: HttpError | None = None,
    state: StateEnd | None = None,
) -> Resource:
    """A response that is over.

    Args:
        resource: what it was.
        status: one of ``FINAL``.
        usage: see ``cost``.
        reason: why it is incomplete.
        error: why it failed.
        state: that was kept.
    """
    told = {**resource, "status": status, "output": output, "usage": usage}
    if status in ("completed", "incomplete"):
        told["completed_at"] = int(time.time())
    if reason is not None:
        told["incomplete_details"] = {"reason": reason}
    if error is not None:
        told["error"] = {"code": error.code or error.type, "message": error.message}
    if state is not None and state.name:
        told["state"] = {"name": state.name, "version": state.version, "ack": state.ack}
    return told


def cost(*, n_input: int, n_cached: int, n_output: int, n_reasoning: int = 0) -> dict[str, Any]:
    """What a response cost, in tokens.

    Args:
        n_input: all that the answer comes after, with what its state had read.
        n_cached: of these, how many were not computed for this response.
        n_output: of the answer.
        n_reasoning: of these, how many were thought and not said.
    """
    return {
        "input_tokens": n_input,
        "input_tokens_details": {"cached_tokens": n_cached, "cache_write_tokens": 0},
        "output_tokens": n_output,
        "output_tokens_details": {"reasoning_tokens": n_reasoning},
        "total_tokens": n_input + n_output,
    }
