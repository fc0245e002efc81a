"""Texts from a model in this process, many at a time: for notebooks and scripts.

::

    from wkvm import LLM, SamplingParams

    with LLM() as llm:
        for output in llm.generate(["Once upon a time", "The sea"], SamplingParams(max_tokens=64)):
            print(output.outputs[0].text)

It is a client of the engine as any other. The engine runs in a thread of its own, so that this
works inside a running event loop too, such as a notebook's.
"""

import concurrent.futures
import dataclasses
import os
import random
import weakref
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
from wkvm_client.errors import ClientClosedError, EmptyPromptError
from wkvm_client.results import Path as ScorePath
from wkvm_client.results import Pooling, TokenLogprobs

from wkvm.assembly.backend import Backend, Place, Remote
from wkvm.assembly.models import find_model
from wkvm.assembly.texts import check_tokenizer, load_texts
from wkvm.core.config import API_KEY_VARIABLE
from wkvm.core.errors import ConfigError, InvalidParameterError
from wkvm.gateway.chat.messages import Message as ChatMessage
from wkvm.gateway.chat.messages import leaves_space, template_messages
from wkvm.gateway.failures import HttpError
from wkvm.gateway.text import Tokenizer, load_tokenizer
from wkvm.llm.batch import Batch, Job
from wkvm.llm.local import local
from wkvm.llm.params import SamplingParams
from wkvm.llm.progress import progress_bar
from wkvm.llm.prompts import Conversation, Prompt, several_conversations, several_prompts
from wkvm.llm.results import CompletionOutput, RequestOutput
from wkvm.llm.scores import embed_all, score_all
from wkvm.llm.states import States, Work

__all__ = ["LLM", "CompletionOutput", "RequestOutput", "SamplingParams"]

T = TypeVar("T")

SHOW_EVERY_S = 0.1


class LLM:
    """A model to generate with.

    ``with`` closes it at the end; otherwise the end of the process does. It may be used on
    several threads at once, which share its slots.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        device: str | None = None,
        dtype: str | None = None,
        quantization: str | None = None,
        state_dtype: str | None = None,
        deferred_writes: bool | None = None,
        deterministic: bool | None = None,
        slots: int | None = None,
        guest_tokens: int | None = None,
        threads: int | None = None,
        seed: int | None = None,
        state_dir: str | Path | None = None,
        tokenizer: str | Path | None = None,
        address: str | None = None,
        api_key: str | None = None,
    ) -> None:
        """Load a model, or connect to a server that has.

        Args:
            model: a folder of safetensors files, or a .pth file; the bundled model if None.
                With ``address``, where tokenizer, template and generation settings are.
            device: ``auto``, ``cpu`` or ``cuda``; auto takes a GPU if there is one.
            dtype: ``auto``, ``float32``, ``bfloat16`` or ``float16``; auto is float32 on a CPU
                and the checkpoint's own on a GPU.
            quantization: of the large matrices, on a GPU: ``none``, ``fp8`` or ``int8``.
            state_dtype: of the states' matrices: ``auto`` (float32), ``float32``, ``float16`` or
                ``bfloat16``.
            deferred_writes: write a state once in eight decoded tokens; on a GPU only.
            deterministic: what comes of a text is the same to the bit whatever runs beside it.
            slots: how many texts are worked on at once; by default what fits in half of the
                free memory, at most 64.
            guest_tokens: how many tokens the attention layers of a hybrid model keep, of all texts
                that are worked on together; by default what fits in the memory that slots leave,
                on a CPU in half of it.
            threads: of a CPU; by default one for a small model, else all cores.
            seed: fixes the seeds of prompts that bring none. The same calls on the same
                model give the same texts then.
            state_dir: where named states are kept; without it in memory, as long as this lives.
            tokenizer: its file or folder; the model's if None.
            address: of a running server, ``tcp://HOST:PORT`` or ``unix:///PATH``. No model
                is loaded; what says how to run one, from ``device`` to ``threads``, is the
                server's.
            api_key: for the server; by default ``$WKVM_API_KEY``.

        Raises:
            ConfigError, CheckpointError, MissingExtraError: of ``wkvm.core.errors``.
            TextError: of ``wkvm.gateway.errors``; there is no tokenizer, or a template is wrong.
            ClientError: of ``wkvm_client``; the server cannot be had.
        """
        path = find_model(None if model is None else str(model))
        its_tokenizer = load_tokenizer(path if tokenizer is None else Path(tokenizer))
        self._texts = load_texts(path, its_tokenizer, default_max_tokens=None)
        self._seeds = random.Random(seed) if seed is not None else None
        engine_settings = {
            "device": device,
            "dtype": dtype,
            "quantization": quantization,
            "state_dtype": state_dtype,
            "deferred_writes": deferred_writes,
            "deterministic": deterministic,
            "n_slots": slots,
            "guest_tokens": guest_tokens,
            "n_threads": threads,
        }
        given = {name: value for name, value in engine_settings.items() if value is not None}
        if address is None:
            place: Place = local(path, given, state_dir)
        elif state_dir is not None:
            raise ConfigError("state_dir", "is the server's affair where there is an address")
        elif given:
            raise ConfigError(next(iter(given)), "is the server's affair where there is an address")
        else:
            place = Remote(address, api_key or os.environ.get(API_KEY_VARIABLE))
        self._backend = Backend.open(place)
        # Called at the end of the process too, while its threads still run.
        self._finish = weakref.finalize(self, self._backend.close)
        try:
            check_tokenizer(
                self.tokenizer, self._backend.server, hint="name the right model or tokenizer"
            )
        except ConfigError:
            self.close()
            raise

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model: text to ids and back."""
        return self._texts.tokenizer

    @property
    def states(self) -> States:
        """The named states: operations on them."""
        return States(self._operate, self.tokenizer.encode)

    def close(self) -> None:
        """End the engine, or the connection. Whatever is being generated fails."""
        self._finish()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        state: str | Sequence[str] | None = None,
        save_as: str | Sequence[str] | None = None,
        use_progress: bool = True,
    ) -> list[RequestOutput]:
        """Complete prompts. Any number of them: so many as there are slots run at a time.

        Ctrl-C cancels what runs and raises KeyboardInterrupt.

        Args:
            prompts: one or several, each a text or its ids.
            sampling_params: for all prompts, or one for each; by default what the model's
                maker suggests.
            state: of ``states``, what all prompts go on from, or one for each. A prompt may be
                empty then: the text goes on where the state ends.
            save_as: what the states at the ends are called, one for each prompt, which has one
                completion then. The next version of that name; a name may be the one gone on from.
                A state ends where its text does: before a stop string.
            use_progress: show a progress bar on standard error, if that is a terminal or a
                notebook.

        Returns:
            As many results as prompts, in their order.

        Raises:
            EmptyPromptError, InvalidParameterError: a prompt is empty, or there are not as
                many parameters as prompts; nothing was generated.
            ClientError: of ``wkvm_client``; one prompt failed, and the others were cancelled.
        """
        each = several_prompts(prompts)
        texts = [prompt if isinstance(prompt, str) else None for prompt in each]
        ids = [self.tokenizer.encode(p) if isinstance(p, str) else list(p) for p in each]
        starts = _names("state", state, len(ids), repeats=True)
        ends = _names("save_as", save_as, len(ids), repeats=False)
        each_params = _each(sampling_params, len(ids))
        jobs = [
            dataclasses.replace(self._job(text, prompt, params), state=start, save_as=end)
            for text, prompt, params, start, end in zip(
                texts, ids, each_params, starts, ends, strict=True
            )
        ]
        return self._run(jobs, use_progress=use_progress)

    def chat(
        self,
        messages: Conversation | Sequence[Conversation],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_progress: bool = True,
    ) -> list[RequestOutput]:
        """Answer conversations, each with the model's chat template. Else as ``generate``.

        Args:
            messages: one conversation or several.
            sampling_params, use_progress: as of ``generate``.

        Returns:
            As many results as conversations, in their order.

        Raises:
            TemplateError, InvalidParameterError: the template does not take the messages, or
                they are none; nothing was generated.
            ClientError: as of ``generate``.
        """
        conversations = several_conversations(messages)
        each = _each(sampling_params, len(conversations))
        jobs = [
            self._chat_job(conversation, params)
            for conversation, params in zip(conversations, each, strict=True)
        ]
        return self._run(jobs, use_progress=use_progress)

    def score(
        self, texts: Prompt | Sequence[Prompt], *, path: ScorePath = "chunked", n_top: int = 0
    ) -> list[list[TokenLogprobs]]:
        """How likely the ids of texts are, each after those before it.

        Args:
            texts: one or several, each a text or its ids.
            path: ``chunked``, as prompts are absorbed and as trainers compute it, or ``decode``,
                id by id; they differ by rounding.
            n_top: tell this many most likely ids too, at each position.

        Returns:
            For each text, in their order, an entry for each id but the first.

        Raises:
            EmptyPromptError: a text is empty; nothing was scored.
            ClientError: of ``wkvm_client``; one text failed, and the others were cancelled.
        """
        each = self._ids(texts)
        work = partial(score_all, texts=each, path=path, n_top=n_top)
        return _wait(self._backend.run(work), lambda: None)

    def embed(
        self, texts: Prompt | Sequence[Prompt], *, pooling: Pooling = "last"
    ) -> list[list[float]]:
        """Vectors of texts, as the model gives them: of no particular length.

        Args:
            texts: one or several, each a text or its ids.
            pooling: ``last`` is the hidden state of the last id, after the final norm; ``mean``
                the mean of those of all ids; ``state`` what the state at the end has in its last
                recurrent layer, its matrices averaged over their keys.

        Returns:
            For each text, in their order, as many numbers as the model is wide.

        Raises:
            EmptyPromptError: a text is empty; nothing was embedded.
            ClientError: of ``wkvm_client``; one text failed, and the others were cancelled.
        """
        each = self._ids(texts)
        work = partial(embed_all, texts=each, pooling=pooling)
        return _wait(self._backend.run(work), lambda: None)

    def _job(self, text: str | None, prompt: list[int], params: SamplingParams) -> Job:
        if params.seed is None and self._seeds is not None:
            params = dataclasses.replace(params, seed=self._seeds.getrandbits(64))
        return Job(text, prompt, params, params.stops)

    def _chat_job(self, conversation: Conversation, params: SamplingParams) -> Job:
        template = self._texts.template
        try:
            messages = template_messages(
                msgspec.convert(conversation, list[ChatMessage]), template, omit_media=False
            )
        except (msgspec.ValidationError, HttpError) as error:
            raise InvalidParameterError(
                "messages", str(error).removeprefix("messages: ")
            ) from error
        text = template.render(messages)
        job = self._job(text, template.encode(messages, self.tokenizer), params)
        ends = () if params.ignore_eos else template.stops
        return dataclasses.replace(
            job,
            stops=(*job.stops, *ends),
            drops_space=leaves_space(job.prompt, self.tokenizer),
        )

    def _run(self, jobs: list[Job], *, use_progress: bool) -> list[RequestOutput]:
        self._check([job.prompt or [0] if job.state else job.prompt for job in jobs])
        for job in jobs:
            if job.save_as and job.params.n != 1:
                raise InvalidParameterError("n", "with save_as there is one completion of a prompt")
        batch = Batch(jobs, self._texts)
        with progress_bar(batch, len(jobs), is_wanted=use_progress) as show:
            return _wait(self._backend.run(batch.run), show)

    def _operate(self, work: Work) -> Any:
        self._check(())
        return _wait(self._backend.run(lambda client: work(client.states)), lambda: None)

    def _ids(self, texts: Prompt | Sequence[Prompt]) -> list[list[int]]:
        each = [
            self.tokenizer.encode(text) if isinstance(text, str) else list(text)
            for text in several_prompts(texts)
        ]
        self._check(each)
        return each

    def _check(self, prompts: Sequence[Sequence[int]]) -> None:
        """See that there is somebody to ask, and something to ask in each case."""
        if not self._finish.alive:
            raise ClientClosedError("the LLM was closed")
        for index, prompt in enumerate(prompts):
            if not prompt:
                raise EmptyPromptError(f"prompt {index} is empty: at least one token id is needed")


def _wait(future: Future[T], show: Callable[[], None]) -> T:
    """Wait for a result, and call ``show`` meanwhile. An interruption cancels it."""
    try:
        while not concurrent.futures.wait((future,), timeout=SHOW_EVERY_S).done:
            show()
        return future.result()
    except BaseException:
        future.cancel()
        raise


def _each(
    params: SamplingParams | Sequence[SamplingParams] | None, n: int
) -> Iterable[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * n
    if len(params) != n:
        raise InvalidParameterError("sampling_params", f"{len(params)} for {n} prompts")
    return params


def _names(
    field: str, names: str | Sequence[str] | None, n: int, *, repeats: bool
) -> Sequence[str]:
    """One name for each of ``n`` prompts; empty for none."""
    if names is None:
        return [""] * n
    if isinstance(names, str):
        names = [names] * (n if repeats else 1)
    if len(names) != n:
        raise InvalidParameterError(field, f"{len(names)} for {n} prompts")
    return names
