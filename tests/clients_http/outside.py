"""Scripts with clients of others, in processes and perhaps in an environment of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import environment

HERE = Path(__file__).parent
EVALUATION_VARIABLE = "WKVM_EVALUATION_PYTHON"


def evaluation_python() -> str:
    """The Python that has the group ``evaluation``; the test is skipped where there is none.

    These clients ask for versions that do not go with those of the suite.
    """
    named = os.environ.get(EVALUATION_VARIABLE)
    path = Path(named or HERE.parents[1] / ".venv-evaluation/bin/python")
    if not path.exists():
        assert named is None, f"{EVALUATION_VARIABLE}: there is no {path}"
        pytest.skip("`make evaluation` installs what this needs")
    return str(path)


def results_of(script: str, *arguments: str, python: str = sys.executable) -> Any:
    """The object that a script of this folder prints as its last line.

    Args:
        script: its name.
        arguments: of it.
        python: that runs it; only this one finds the packages of this process.
    """
    env = environment()
    if python != sys.executable:
        del env["PYTHONPATH"]
    done = subprocess.run(
        [python, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
