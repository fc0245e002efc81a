"""``import wkvm`` is light; its names are found when they are asked for."""

import subprocess
import sys

import pytest

import wkvm
from tests.cli.conftest import environment


def output_of(program: str) -> str:
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, capture_output=True, text=True, env=environment(), timeout=300, check=True
    ).stdout


def test_importing_wkvm_loads_nothing_else_of_it_or_of_others() -> None:
    program = (
        "import sys; before = set(sys.modules); import wkvm; new = set(sys.modules) - before\n"
        "heavy = ('torch', 'numpy', 'msgspec', 'aiohttp', 'rich', 'wkvm.')\n"
        "print([name for name in new if name.startswith(heavy)])"
    )
    assert output_of(program) == "[]\n"


def test_the_names_are_there_without_torch_and_what_is_missing_is_named() -> None:
    program = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'safetensors', 'triton', 'fla'): sys.modules[name] = None\n"
        "import importlib.machinery, importlib.util\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name == 'torch' else find(name, *a)\n"
        "from wkvm import LLM, CompletionOutput, RequestOutput, SamplingParams\n"
        "try: LLM()\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    assert output_of(program).startswith("MissingExtraError torch is not installed")


def test_every_name_is_listed_and_leads_to_wkvm_llm() -> None:
    assert set(wkvm.__all__) <= set(dir(wkvm))
    for name in set(wkvm.__all__) - {"__version__"}:
        assert getattr(wkvm, name) is getattr(wkvm.llm, name)


def test_other_names_are_missing_as_in_any_module() -> None:
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = wkvm.nothing
