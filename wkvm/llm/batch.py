"""Many prompts through one connection, a bounded number of them at a time."""

import asyncio
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from wkvm_client import aio
from wkvm_client.errors import QueueFullError, TooManyLanesError
from wkvm_client.results import TokenLogprobs

from wkvm.gateway.failures import HttpError
from wkvm.gateway.states.fields import StateFields
from wkvm.gateway.states.keeping import choice_text, settled
from wkvm.gateway.streams.choices import Lanes
from wkvm.gateway.streams.pieces import ChoiceText, Finish, TextOptions
from wkvm.gateway.texts import Texts
from wkvm.llm.params import SamplingParams
from wkvm.llm.results import CompletionOutput, RequestOutput

T = TypeVar("T")

CHOICES_PER_SLOT = 2
"""Choices that are open for each slot of the server: one that runs, and one to follow it."""

PATIENCE_S = 60.0
"""How long a server's queue may be full while nothing of a batch goes on."""

RETRY_PAUSE_S = 0.1


@dataclass(frozen=True, slots=True)
class Job:
    """One prompt and what is asked for.

    Attributes:
        text: of the prompt, if it was one.
        params: for its completions.
        stops: strings that end a completion.
        state: what it goes on from; empty for the beginning.
        save_as: what the state at the end is called; empty for one that is not kept.
        drops_space: whether a space at a completion's very beginning belongs to the prompt.
    """

    text: str | None
    prompt: list[int]
    params: SamplingParams
    stops: tuple[str, ...]
    drops_space: bool = False
    state: str = ""
    save_as: str = ""


class Batch:
    """Jobs on their way. Runs once, on the client's event loop.

    Attributes:
        n_done: jobs that are complete. May be read on any thread, as ``n_ids``.
        n_ids: ids that have come, of all jobs.
    """

    def __init__(self, jobs: Sequence[Job], texts: Texts) -> None:
        self.n_done = 0
        self.n_ids = 0
        self._jobs = jobs
        self._texts = texts
        self._results: list[RequestOutput | None] = [None] * len(jobs)
        self._patient_until_s = 0.0

    async def run(self, client: aio.Client) -> list[RequestOutput]:
        """Carry out all jobs. The first that fails ends the others; so does cancelling this.

        Returns:
            Results in the order of the jobs.

        Raises:
            ClientError: a job failed.
        """
        self._went_on()
        waiting = iter(range(len(self._jobs)))
        await _side_by_side(self._work(client, waiting) for _ in range(self._n_open(client)))
        return [result for result in self._results if result is not None]

    def _n_open(self, client: aio.Client) -> int:
        """How many jobs to have open: enough that no slot waits for the next one."""
        most_choices = max((job.params.n for job in self._jobs), default=1)
        wanted = CHOICES_PER_SLOT * client.server.n_slots // most_choices
        return max(1, min(wanted, client.server.max_lanes, len(self._jobs)))

    async def _work(self, client: aio.Client, waiting: Iterator[int]) -> None:
        for index in waiting:
            self._results[index] = await self._result(client, self._jobs[index])
            self.n_done += 1

    async def _result(self, client: aio.Client, job: Job) -> RequestOutput:
        """Carry out one job, again if others have filled the server's queue."""
        while True:
            try:
                return await self._attempt(client, job)
            except (QueueFullError, TooManyLanesError) as error:
                if time.monotonic() > self._patient_until_s:
                    raise
                await asyncio.sleep(max(error.retry_after_ms / 1000, RETRY_PAUSE_S))

    async def _attempt(self, client: aio.Client, job: Job) -> RequestOutput:
        keywords = job.params.keywords(self._texts.suggested)
        keywords["credit"] = None  # no limit on ids that wait here: they are kept anyway
        fields = StateFields(state=job.state or None, save_as=job.save_as or None)
        keywords.update(fields.state_keywords())
        async with Lanes(client) as lanes:
            streams = await lanes.open(job.prompt, keywords, n=job.params.n)
            outputs = await _side_by_side(
                self._read(client, stream, index, job, fields)
                for index, stream in enumerate(streams)
            )
        wants_prompt = job.params.prompt_logprobs is not None
        logprobs = streams[0].prompt_logprobs if wants_prompt else None
        return RequestOutput(job.text, job.prompt, logprobs, outputs)

    async def _read(
        self, client: aio.Client, stream: aio.Stream, index: int, job: Job, fields: StateFields
    ) -> CompletionOutput:
        """Read one choice to its end or to a stop string, which lets go of it.

        A state that is kept ends where the text does.
        """
        choice = stream.choices[0]
        options = TextOptions(
            stops=job.stops,
            min_tokens=job.params.min_tokens,
            logprobs=job.params.logprobs is not None,
        )
        reader = choice_text(stream, self._texts, options, fields)
        text, ids, logprobs = list[str](), list[int](), list[TokenLogprobs]()
        finish: Finish | None = None
        try:
            while finish is None:
                piece = await reader.read()
                self._went_on()
                self.n_ids += len(piece.ids)
                text.append(piece.text)
                ids += piece.ids
                logprobs += piece.logprobs
                finish = piece.finish
        except HttpError:  # how the reader says that the server has ended the choice early
            pass
        state = await settled(client, finish) if finish is not None and job.save_as else None
        whole = "".join(text)
        stop_reason = finish.stop_reason if finish else None
        if stop_reason not in (*job.params.stops, *job.params.stop_ids):
            stop_reason = None  # the model's own end, or its template's
        return CompletionOutput(
            index=index,
            text=whole.removeprefix(" ") if job.drops_space else whole,
            ids=ids,
            finish_reason=finish.reason if finish else str(choice.result.reason),
            stop_reason=stop_reason,
            logprobs=logprobs if options.logprobs else None,
            state=state,
            cached_tokens=_n_cached(reader, finish),
        )

    def _went_on(self) -> None:
        self._patient_until_s = time.monotonic() + PATIENCE_S


def _n_cached(reader: ChoiceText, finish: Finish | None) -> int:
    """How many tokens of a choice's state and prompt were not computed for it."""
    end = None if finish is None else finish.state
    return reader.n_reused + (0 if end is None else end.cached_tokens)


async def _side_by_side(works: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Await coroutines together. The first that fails cancels the others, and its error counts."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(work) for work in works]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]
