"""Whether lm-eval, asking a running server, comes to the numbers of the model scored directly.

    python -m tools.evaluation --url http://127.0.0.1:8000 --python .venv-evaluation/bin/python

lm-eval runs small tasks of ours (``evaluation_tasks``) over HTTP. The same requests are scored in
this process twice: by ``wkvm.LLM``, and by one forward pass of the model over each text. Printed
are all scores, and by how much single log likelihoods differ at most.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from wkvm_client.results import TokenLogprobs

from tools.evaluation_tasks import (
    CHATS,
    CHOICES,
    MAX_TOKENS,
    OPENINGS,
    STOP,
    TEXTS,
    choices,
    openings,
    texts,
    write_tasks,
)
from wkvm import LLM, SamplingParams
from wkvm.assembly.models import BUNDLED
from wkvm.models.base import Batch, Model
from wkvm.models.registry import load_model
from wkvm.state.arena import Arena

WINDOW = 64
"""lm-eval's ``max_length``: so short that the longer texts are scored in several windows."""

Score = Callable[[Sequence[Sequence[int]]], list[list[float]]]
"""Log probabilities of the ids of texts, of each text all but the first."""


@dataclass(frozen=True, slots=True)
class Scores:
    """What a way of scoring comes to.

    Attributes:
        likelihoods: of every continuation of ``choices``, and of every text of ``texts``.
        metrics: by task and name.
    """

    likelihoods: dict[str, list[float]]
    metrics: dict[str, dict[str, float]]


# --- over HTTP ----------------------------------------------------------------------------


def run_lm_eval(
    python: str,
    url: str,
    folder: Path,
    *,
    model: str,
    first_id: int,
    api_key: str = "none",
    chats: bool = False,
    batch_size: int = 1,
    **settings: object,
) -> Scores:
    """Run lm-eval on the tasks in ``folder``.

    Args:
        python: of the environment that has lm-eval.
        url: of the server, without a path.
        folder: where ``write_tasks`` wrote.
        model, api_key: as the server knows them.
        first_id: stands before every text that is scored from its beginning. Left to itself,
            lm-eval takes the server's ``bos_token``, but the ``eos_token`` if that has id 0.
        chats: ask for chats; there lm-eval has one task that it can ask for.
        batch_size: texts of one request.
        settings: more of the model's, such as ``num_concurrent``.

    Raises:
        subprocess.CalledProcessError: it failed; its output was printed.
    """
    kind, path = (
        ("local-chat-completions", "chat/completions")
        if chats
        else (
            "local-completions",
            "completions",
        )
    )
    given = {"model": model, "base_url": f"{url}/v1/{path}", "max_length": WINDOW} | settings
    if not chats:
        given |= {"auth_token": api_key, "custom_prefix_token_id": first_id}
    with tempfile.TemporaryDirectory() as name:
        output = Path(name)
        command = [python, "-m", "lm_eval", "--model", kind]
        command += ["--model_args", json.dumps(given)]
        command += ["--tasks", CHATS if chats else f"{CHOICES},{TEXTS},{OPENINGS}"]
        command += [
            "--batch_size",
            str(batch_size),
            "--include_path",
            str(folder),
            "--output_path",
            name,
            "--log_samples",
        ]
        command += ["--apply_chat_template"] if chats else []
        done = subprocess.run(
            command,
            env=os.environ
            | {
                "HF_HOME": str(folder / "hub"),
                "HF_HUB_OFFLINE": "1",
                "HF_DATASETS_OFFLINE": "1",
                "OPENAI_API_KEY": api_key,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            print(done.stdout, file=sys.stderr)
        done.check_returncode()
        return _read(output)


def _read(output: Path) -> Scores:
    (results,) = output.rglob("results_*.json")
    metrics = {
        task: {
            name.removesuffix(",none"): value
            for name, value in of_task.items()
            if name.endswith(",none") and isinstance(value, float) and "stderr" not in name
        }
        for task, of_task in json.loads(results.read_text())["results"].items()
    }
    likelihoods = dict[str, list[float]]()
    for task in (CHOICES, TEXTS):
        for samples in output.rglob(f"samples_{task}_*.jsonl"):
            lines = [json.loads(line) for line in samples.read_text().splitlines()]
            lines.sort(key=lambda line: line["doc_id"])
            likelihoods[task] = [_likelihood(one) for line in lines for (one,) in line["resps"]]
    return Scores(likelihoods, metrics)


def _likelihood(reply: str | list[str]) -> float:
    """Of a text; of a continuation, which comes with whether it is the most likely one."""
    return float(reply if isinstance(reply, str) else reply[0])


# --- directly -----------------------------------------------------------------------------


def score_by_llm(llm: LLM) -> Score:
    """By the engine, as prompts are absorbed."""

    def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        def logprob(entry: TokenLogprobs) -> float:
            return entry.logprob

        return [[logprob(entry) for entry in one] for one in llm.score(list(sequences))]

    return score


def score_by_forward(model: Model) -> Score:
    """By one forward pass over each text, without an engine."""

    def score(sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        return [list(_forward(model, ids)) for ids in sequences]

    return score


def _forward(model: Model, ids: Sequence[int]) -> Iterator[float]:
    device = model.info.device
    given = torch.tensor(ids, dtype=torch.int64, device=device)
    batch = Batch(
        token_ids=given,
        slots=torch.zeros(1, dtype=torch.int32, device=device),
        lengths=(len(ids),),
        slot_list=(0,),
        logit_rows=torch.arange(len(ids), device=device),
    )
    arena = Arena(model.layout, 1, device)
    arena.zero([0])
    of_all = torch.log_softmax(model.forward(batch, arena.views)[:-1].float(), -1)
    yield from of_all.gather(-1, given[1:, None])[:, 0].tolist()


def score_directly(score: Score, encode: Callable[[str], list[int]], first_id: int) -> Scores:
    """The likelihoods of the tasks and what they come to, by the definitions of the metrics.

    Args:
        score: of ids.
        encode: text to ids.
        first_id: stands before every text that is scored from its beginning.
    """
    of_choices = _score_choices(score, encode)
    of_texts = _score_texts(score, encode, first_id)
    groups = [of_choices[place : place + 4] for place in range(0, len(of_choices), 4)]
    hits, hits_by_length = list[bool](), list[bool]()
    for document, group in zip(choices(), groups, strict=True):
        options: Any = document["options"]
        by_length = [one / len(text) for one, text in zip(group, options, strict=True)]
        hits.append(group.index(max(group)) == document["gold"])
        hits_by_length.append(by_length.index(max(by_length)) == document["gold"])
    whole = [str(document["text"]) for document in texts()]
    n_words = sum(len(text.split()) for text in whole)
    n_bytes = sum(len(text.encode()) for text in whole)
    return Scores(
        {CHOICES: of_choices, TEXTS: of_texts},
        {
            CHOICES: {
                "acc": sum(hits) / len(hits),
                "acc_norm": sum(hits_by_length) / len(hits_by_length),
            },
            TEXTS: {
                "word_perplexity": math.exp(-sum(of_texts) / n_words),
                "byte_perplexity": math.exp(-sum(of_texts) / n_bytes),
            },
        },
    )


def _score_choices(score: Score, encode: Callable[[str], list[int]]) -> list[float]:
    sequences, n_before = list[list[int]](), list[int]()
    for document in choices():
        options: Any = document["options"]
        n = len(encode(str(document["beginning"])))
        for option in options:
            sequences.append(encode(f"{document['beginning']} {option}"))
            n_before.append(n)
    return [sum(logprobs[n - 1 :]) for logprobs, n in zip(score(sequences), n_before, strict=True)]


def _score_texts(score: Score, encode: Callable[[str], list[int]], first_id: int) -> list[float]:
    """Each text in windows of as many ids as lm-eval takes: of the last one, the new ids count."""
    length = WINDOW - 2  # lm-eval keeps one for output, and one for the id before the window
    likelihoods = list[float]()
    for document in texts():
        ids = [first_id, *encode(str(document["text"]))]
        windows, n_new = list[list[int]](), list[int]()
        for start in range(1, len(ids), length):
            end = min(start + length, len(ids))
            windows.append(ids[max(0, end - length - 1) : end])
            n_new.append(end - start)
        each = zip(score(windows), n_new, strict=True)
        likelihoods.append(sum(sum(logprobs[-n:]) for logprobs, n in each))
    return likelihoods


def expected_texts(llm: LLM) -> tuple[list[str], list[str]]:
    """What the model makes of the openings in this process: as texts that go on, and as chats."""
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, stop=STOP)
    beginnings = [str(document["beginning"]) for document in openings()]
    texts_after = llm.generate(beginnings, params, use_progress=False)
    conversations = [[{"role": "user", "content": text}] for text in beginnings]
    replies = llm.chat(conversations, params, use_progress=False)
    return (
        [one.outputs[0].text for one in texts_after],
        [one.outputs[0].text for one in replies],
    )


# --- side by side -------------------------------------------------------------------------


def largest_difference(a: Scores, b: Scores) -> float:
    """Of single log likelihoods, which must be of the same requests."""
    return max(
        abs(one - other)
        for task in (CHOICES, TEXTS)
        for one, other in zip(a.likelihoods[task], b.likelihoods[task], strict=True)
    )


def main() -> int:
    """Run lm-eval and both direct ways, and print what they come to.

    Returns:
        The exit status: 1 if a metric differs in the digits that lm-eval prints.
    """
    parser = argparse.ArgumentParser(description="lm-eval against the model itself.")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="(default: %(default)s)")
    parser.add_argument("--python", default=sys.executable, help="of what has lm-eval")
    parser.add_argument("--model", type=Path, default=BUNDLED, help="that the server serves")
    parser.add_argument("--api-key", default=os.environ.get("WKVM_API_KEY", "none"))
    parser.add_argument("--concurrent", type=int, default=4, help="requests at a time")
    options = parser.parse_args()
    with LLM(options.model) as llm, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        answers, replies = expected_texts(llm)
        write_tasks(folder, answers=answers, replies=replies)
        model = load_model(options.model)
        first_id = model.info.eos_ids[0]
        asking: dict[str, Any] = {
            "model": options.model.resolve().name,
            "api_key": options.api_key,
            "first_id": first_id,
            "num_concurrent": options.concurrent,
        }
        over_http = run_lm_eval(options.python, options.url, folder, **asking)
        in_chats = run_lm_eval(options.python, options.url, folder, chats=True, **asking)
        by_llm = score_directly(score_by_llm(llm), llm.tokenizer.encode, first_id)
        by_forward = score_directly(score_by_forward(model), llm.tokenizer.encode, first_id)
    generated = {OPENINGS: {"exact_match": 1.0}, CHATS: {"exact_match": 1.0}}
    is_equal = True
    print(f"{'task, metric':<32} {'lm-eval':>12} {'wkvm.LLM':>12} {'forward':>12}")
    for task, metrics in (over_http.metrics | in_chats.metrics).items():
        for metric, value in metrics.items():
            direct = (by_llm.metrics | generated)[task][metric]
            plain = (by_forward.metrics | generated)[task][metric]
            is_equal &= f"{value:.4f}" == f"{direct:.4f}" == f"{plain:.4f}"
            print(f"{task + ', ' + metric:<32} {value:>12.4f} {direct:>12.4f} {plain:>12.4f}")
    for what, other in (("wkvm.LLM", by_llm), ("forward", by_forward)):
        largest = largest_difference(over_http, other)
        print(f"log likelihoods, lm-eval and {what}: at most {largest:.3g} apart")
    return 0 if is_equal else 1


if __name__ == "__main__":
    sys.exit(main())
