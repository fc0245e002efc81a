"""``wkvm complete``: one completion to standard output, as it comes."""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

from wkvm_client.errors import ClientError
from wkvm_client.results import Completion, TokenLogprobs
from wkvm_client.states import StateEnd
from wkvm_protocol.messages import EndReason

from wkvm.assembly.backend import Answer
from wkvm.cli.flags import EXACT_FLAGS, SAMPLING_FLAGS
from wkvm.cli.place import Setting, note, open_setting, sampling_options
from wkvm.cli.status import EXIT_FAILURE, EXIT_INTERRUPTED
from wkvm.cli.terminal import harmless
from wkvm.core.errors import ConfigError
from wkvm.gateway.text import TextError, TextStream, Tokenizer


def run(args: argparse.Namespace) -> int:
    """Complete a text. Ctrl-C ends it early.

    Raises:
        WkvmError, TextError, ClientError: there is no completion.
    """
    if not args.json and (args.logprobs, args.prompt_logprobs) != (None, None):
        raise ConfigError("logprobs", "log probabilities are printed with --json only")
    if not all(args.stop):
        raise ConfigError("stop", "must not be empty")
    if args.stop and args.save_as:
        raise ConfigError("save-as", "cannot be together with --stop: the state ends where ids do")
    text = sys.stdin.buffer.read().decode(errors="replace") if args.prompt == "-" else args.prompt
    with open_setting(args) as setting:
        prompt = setting.tokenizer.encode(text, special=args.special)
        options = sampling_options(args, SAMPLING_FLAGS + EXACT_FLAGS, setting.suggested)
        answer = setting.backend.generate(prompt, **options, state=args.state, save_as=args.save_as)
        min_tokens = options.get("min_tokens", 0)
        stream = TextStream(setting.tokenizer, args.stop, min_tokens=min_tokens)
        shown = list[str]()

        def put(text: str) -> None:
            shown.append(text)
            if not args.json:
                print(harmless(text, sys.stdout), end="", flush=True)

        try:
            completion, was_interrupted = follow(answer, stream, put)
        except (ClientError, TextError):
            if shown and not args.json:
                print(flush=True)  # the error gets a line of its own
            raise
        if args.json:
            print(json.dumps(_report(setting, prompt, "".join(shown), stream.stop, completion)))
        else:
            print()
            if completion.state is not None and completion.state.name:
                note(f"kept as {completion.state.ref}, {completion.state.ack}")
    if was_interrupted:
        return EXIT_INTERRUPTED
    if stream.stop is None and (why := cut_short(completion)) is not None:
        note(why)
        return EXIT_FAILURE
    return 0


def cut_short(completion: Completion) -> str | None:
    """Why the server ended an answer that nobody here cancelled, if it did."""
    match completion.reason:
        case EndReason.TIMED_OUT:
            return "the answer was not complete in time"
        case EndReason.CANCELLED:
            return "the server ended the answer early"
        case _:
            return None


def follow(
    answer: Answer, stream: TextStream, put: Callable[[str], None]
) -> tuple[Completion, bool]:
    """Hand over an answer's text as it comes, up to a stop string.

    Ctrl-C cancels the answer, as a stop string does; the text up to then counts.

    Returns:
        The completion, and whether Ctrl-C ended it.

    Raises:
        ClientError: the answer failed; its beginning was handed over.
    """
    was_interrupted = False
    try:
        for ids in answer:
            if text := stream.feed(ids).text:
                put(text)
            if stream.stop is not None:
                break
    except KeyboardInterrupt:
        was_interrupted = True
    finally:
        answer.cancel()
    completion = answer.completion()
    if text := stream.flush().text:
        put(text)
    return completion, was_interrupted


def _report(
    setting: Setting, prompt: list[int], text: str, stop: str | None, completion: Completion
) -> dict[str, Any]:
    timings = completion.timings
    return {
        "model": setting.server.model,
        "text": text,
        "ids": completion.ids,
        "reason": "stop" if stop is not None else str(completion.reason),
        "stop": stop,
        "stop_id": completion.stop_id,
        "prompt_ids": prompt,
        "n_prompt": completion.n_prompt,
        "n_output": completion.n_output,
        "logprobs": _logprobs(completion.logprobs, setting.tokenizer),
        "prompt_logprobs": _logprobs(completion.prompt_logprobs, setting.tokenizer),
        "queue_s": timings.queue_s,
        "first_token_s": timings.first_token_s,
        "total_s": timings.total_s,
        "state": None if completion.state is None else _kept(completion.state),
    }


def _kept(state: StateEnd) -> dict[str, Any]:
    return {
        "state": state.ref or None,
        "ack": state.ack or None,
        "cached_tokens": state.cached_tokens,
        "n_computed": state.n_computed,
        "pending": list(state.pending),
    }


def _logprobs(
    positions: Sequence[TokenLogprobs] | None, tokenizer: Tokenizer
) -> list[dict[str, Any]] | None:
    if positions is None:
        return None
    return [
        {
            "id": position.token_id,
            "token": _name(position.token_id, tokenizer),
            "logprob": position.logprob,
            "rank": position.rank,
            "top": [
                {
                    "id": top.token_id,
                    "token": _name(top.token_id, tokenizer),
                    "logprob": top.logprob,
                }
                for top in position.top
            ],
        }
        for position in positions
    ]


def _name(token_id: int, tokenizer: Tokenizer) -> str:
    """An id as text; a model may have ids that its tokenizer lacks."""
    if token_id >= tokenizer.vocab_size:
        return ""
    return tokenizer.decode([token_id], skip_special=False)
