"""Small tasks for lm-eval, of texts that are put together here: nothing is downloaded.

One task of each kind that an engine is asked for: continuations to choose from, the likelihood of
whole texts, and texts to go on with.
"""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

CHOICES, TEXTS, OPENINGS = "wkvm_choices", "wkvm_texts", "wkvm_openings"
CHATS = "wkvm_chats"
"""The openings once more, for chats."""

STOP = "."
MAX_TOKENS = 24

_ANIMALS = ("fox", "cat", "little bird", "big bear")
_NAMES = ("Omar", "Lily", "Tim")
_SCENES = (
    # All four of these make sense.
    ("{name} was hungry. {name} ate some", ("berries", "bread", "fish", "cake")),
    ("It was cold outside, so {name} put on a warm", ("coat", "river", "song", "spoon")),
    ("{name} fell and began to", ("cry", "purple", "window", "slowly of")),
)
_GIFTS = ("a red ball", "a shiny stone", "a loaf of bread")
_PLACES = ("in the park", "by the river", "under the old tree")

_GENERATES = {
    "output_type": "generate_until",
    "doc_to_text": "{{beginning}}",
    "doc_to_target": "{{answer}}",
    "generation_kwargs": {"until": [STOP], "max_gen_toks": MAX_TOKENS, "temperature": 0},
    "metric_list": [
        {"metric": "exact_match", "aggregation": "mean", "higher_is_better": True},
    ],
}


def choices() -> list[dict[str, object]]:
    """Beginnings, each with four continuations, one of which counts as right."""
    documents = list[dict[str, object]]()
    for number, (animal, name, (scene, options)) in enumerate(product(_ANIMALS, _NAMES, _SCENES)):
        gold = number % len(options)
        # The first of the table is right.
        turned = [options[(place - gold) % len(options)] for place in range(len(options))]
        beginning = f"Once upon a time there was a {animal} named {name}. {scene}"
        documents.append(
            {"beginning": beginning.format(name=name), "options": turned, "gold": gold}
        )
    return documents


def texts() -> list[dict[str, object]]:
    """Stories of some fifty to two hundred tokens; one has characters of several bytes."""
    stories = [
        " ".join(
            f"One day {name} the {animal} went to play {place}. There {name} found {gift}. "
            f'"What a nice day," said {name}. "I will show {gift} to my friend."'
            for animal in _ANIMALS[:n]
            for gift in _GIFTS[:1]
        )
        for n, (name, place, gift) in enumerate(product(_NAMES, _PLACES, _GIFTS[:1]), 1)
    ]
    return [
        {"text": text} for text in [*stories, "Ada drank tea at the café: 3 cups, ½ price. 茶!"]
    ]


def openings() -> list[dict[str, object]]:
    """Beginnings of stories."""
    return [
        {"beginning": f"Once upon a time, {name} the {animal} lived {place}."}
        for name, animal, place in zip(
            _NAMES * 4, [one for one in _ANIMALS for _ in _NAMES], _PLACES * 4, strict=True
        )
    ]


def write_tasks(folder: Path, *, answers: Sequence[str], replies: Sequence[str]) -> None:
    """Write the tasks' files: a description and its documents each.

    Args:
        folder: is made; lm-eval's ``--include_path``.
        answers: what should come after each of ``openings``, as a text that goes on.
        replies: what should be answered to each in a chat.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder,
        CHOICES,
        choices(),
        {
            "output_type": "multiple_choice",
            "doc_to_text": "{{beginning}}",
            "doc_to_choice": "{{options}}",
            "doc_to_target": "{{gold}}",
            "target_delimiter": " ",
            "metric_list": [_metric("acc"), _metric("acc_norm")],
        },
    )
    _write(
        folder,
        TEXTS,
        texts(),
        {
            "output_type": "loglikelihood_rolling",
            "doc_to_text": "",
            "doc_to_target": "{{text}}",
            "metric_list": [{"metric": name} for name in ("word_perplexity", "byte_perplexity")],
        },
    )
    for name, expected in ((OPENINGS, answers), (CHATS, replies)):
        documents = [
            {**opening, "answer": answer}
            for opening, answer in zip(openings(), expected, strict=True)
        ]
        _write(folder, name, documents, _GENERATES)


def _metric(name: str) -> dict[str, object]:
    return {"metric": name, "aggregation": "mean", "higher_is_better": True}


def _write(
    folder: Path,
    name: str,
    documents: Sequence[Mapping[str, object]],
    description: Mapping[str, object],
) -> None:
    data = folder / f"{name}.jsonl"
    lines = [json.dumps(document, ensure_ascii=False) for document in documents]
    data.write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "metadata": {"version": 1},
        **description,
    }
    # JSON is YAML.
    (folder / f"{name}.yaml").write_text(json.dumps(whole, indent=2), encoding="utf-8")
