"""What the GPU tools find: JSON lines, each with where it comes from."""

import json
import sys
import time
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
