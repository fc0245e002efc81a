"""What the GPU tools find: JSON lines, each with where it comes from."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeAlias

import torch
import triton

Finding: TypeAlias = dict[str, Any]


class Findings:
    """Writes findings to a file.

    Args:
        output: open for writing.
        commit: of the code that ran, which the machine with the GPU may not know.
        command: what ran, without paths of that machine.

    Attributes:
        n_failed: how many had an ``ok`` that is false.
    """

    def __init__(self, output: TextIO, *, commit: str, command: str) -> None:
        self._output = output
        self._about: Finding = {
            "commit": commit,
            "date": time.strftime("%Y-%m-%d"),
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": sys.version.split()[0],
            "command": command,
        }
        self.n_failed = 0

    def add(self, finding: Finding) -> None:
        """Write a finding, and print it."""
        print(json.dumps(finding), flush=True)
        self.write(finding)

    def write(self, finding: Finding) -> None:
        """Write a finding, one of too many to be printed."""
        self.n_failed += finding.get("ok") is False
        self._output.write(json.dumps({**finding, **self._about}) + "\n")
        self._output.flush()


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """A tool's arguments, with those that ``recorded`` reads."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--output", type=Path, required=True, help="lines are appended to it")
    parser.add_argument("--commit", default="unknown")
    return parser


@contextmanager
def recorded(arguments: argparse.Namespace) -> Iterator[Findings]:
    """Where a tool's findings go. Within, float32 products are exact, and nothing has a gradient.

    Their command is this process' own, with the output called FILE.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    command = " ".join(["python", *sys.argv]).replace(str(arguments.output), "FILE")
    with arguments.output.open("a") as output, torch.inference_mode():
        yield Findings(output, commit=arguments.commit, command=command)
