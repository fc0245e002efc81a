"""The routes of llama.cpp's server that have no other here: a part of the table of all."""

from wkvm.gateway.calls import Route
from wkvm.gateway.described import Doc, Query
from wkvm.gateway.llama_cpp import completion, props, slots
from wkvm.gateway.llama_cpp.bodies import CompletionBody, SlotBody, TemplateBody
from wkvm.gateway.llama_cpp.dialect import LLAMA_CPP, ErrorReply
from wkvm.gateway.llama_cpp.replies import Event

_ACTION = Query("action", str, "`save`, `restore` or `erase`")

ROUTES: tuple[Route, ...] = (
    Route(
        "POST",
        "/apply-template",
        props.apply_template,
        dialect=LLAMA_CPP,
        doc=Doc(body=TemplateBody, answer=props.Prompt, error=ErrorReply),
    ),
    Route(
        "POST",
        "/completion",
        completion.completion,
        dialect=LLAMA_CPP,
        doc=Doc(body=CompletionBody, answer=(Event, list[Event]), event=Event, error=ErrorReply),
    ),
    Route("POST", "/infill", props.infill, dialect=LLAMA_CPP, doc=Doc(error=ErrorReply)),
    Route(
        "GET",
        "/props",
        props.props,
        dialect=LLAMA_CPP,
        doc=Doc(answer=props.Props, error=ErrorReply),
    ),
    Route(
        "GET",
        "/slots",
        slots.slots,
        dialect=LLAMA_CPP,
        doc=Doc(
            answer=list[slots.SlotState],
            query=(Query("fail_on_no_slot", str, "503 if no slot is free"),),
            error=ErrorReply,
        ),
    ),
    Route(
        "POST",
        "/slots/{id}",
        slots.act,
        dialect=LLAMA_CPP,
        doc=Doc(
            body=SlotBody,
            body_optional=True,
            query=(_ACTION,),
            answer=(slots.Saved, slots.Restored, slots.Erased),
            error=ErrorReply,
        ),
    ),
)
