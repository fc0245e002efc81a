"""No module of wkvm runs what it reads: rows 1 and 19 of the threats, by all of its code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("wkvm", "protocol/wkvm_protocol", "clients/wkvm_client")
MODULES = tuple(path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")))

UNPICKLE_OR_RUN = frozenset(
    {
        *("cPickle", "cloudpickle", "dill", "jsonpickle", "joblib", "marshal", "pickle", "shelve"),
        *("yaml", "ruamel", "xmlrpc", "multiprocessing", "asteval", "numexpr"),
        *("code", "codeop", "runpy", "imp", "zipimport", "ctypes", "cffi", "pty"),
    }
)
"""Modules whose purpose it is to make objects or code of bytes."""
BUILTINS = frozenset({"eval", "exec", "compile", "__import__"})
CALLS = frozenset(
    {
        *("os.system", "os.popen", "os.startfile", "torch.hub.load", "torch.jit.load"),
        *("torch.package.PackageImporter", "numpy.frompyfunc", "pandas.read_pickle"),
        *("subprocess.getoutput", "subprocess.getstatusoutput", "logging.config.listen"),
    }
)
ALLOWED = {
    # The type of an error of torch's, for a checkpoint of the operator's.
    ("wkvm/models/weights.py", "import pickle"),
    # A function of the allocator that the process has already; no library is looked for.
    ("wkvm/gateway/offload.py", "import ctypes"),
    ("wkvm/gateway/offload.py", "ctypes.CDLL(None)"),
    # Which modules there are is a table in the code.
    ("wkvm/__init__.py", "importlib.import_module('wkvm.llm')"),
    ("wkvm/models/registry.py", "importlib.import_module(MODULES[model_type])"),
    ("wkvm/cli/chat.py", "importlib.import_module('readline')"),
}


def findings(source: str) -> Iterator[str]:
    """What a module does that might run what it reads, each as the code has it."""
    tree = ast.parse(source)
    names = dict[str, str]()
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=imported):
                for one in imported:
                    names[one.asname or one.name.partition(".")[0]] = one.name
                    if one.name.partition(".")[0] in UNPICKLE_OR_RUN:
                        yield f"import {one.name}"
            case ast.ImportFrom(module=str(module), names=imported):
                for one in imported:
                    names[one.asname or one.name] = f"{module}.{one.name}"
                if module.partition(".")[0] in UNPICKLE_OR_RUN:
                    yield f"from {module} import"
            case _:
                pass
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from _of_call(node, names)
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if names.get(node.value.id) == "pickle" and node.attr != "UnpicklingError":
                yield f"pickle.{node.attr}"
        elif isinstance(node, ast.Name) and node.id in ("eval", "exec", "__import__"):
            yield node.id


def _of_call(node: ast.Call, names: dict[str, str]) -> Iterator[str]:
    called = ast.unparse(node.func)
    first, dot, rest = called.partition(".")
    full = names.get(first, first) + dot + rest
    given = {one.arg: one.value for one in node.keywords}
    if called in BUILTINS or full in CALLS:
        yield full
    elif full == "importlib.import_module" or full.startswith("ctypes."):
        yield ast.unparse(node)
    elif full.endswith(("spec_from_file_location", "spec_from_loader", "module_from_spec")):
        yield full
    elif full == "torch.load":
        if not _is(given.get("weights_only"), True):
            yield "torch.load without weights_only=True"
    elif "allow_pickle" in given and not _is(given["allow_pickle"], False):
        yield f"{full} with pickles"
    if "shell" in given and not _is(given["shell"], False):
        yield f"{full} in a shell"


def _is(node: ast.expr | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def test_no_module_runs_what_it_reads() -> None:
    found = {
        (name, one)
        for name in (path.relative_to(ROOT).as_posix() for path in MODULES)
        for one in findings((ROOT / name).read_text(encoding="utf-8"))
    }
    assert len(MODULES) > 300
    assert found - ALLOWED == set()


def test_everything_that_is_allowed_is_there() -> None:
    there = {(name, one) for name, _ in ALLOWED for one in findings((ROOT / name).read_text())}
    assert ALLOWED - there == set()


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import pickle\npickle.loads(data)",
        "import yaml as y",
        "from multiprocessing.connection import Client",
        "eval(text)",
        "run = exec",
        "__import__(name)",
        "compile(text, 'f', 'exec')",
        "import os\nos.system(text)",
        "from os import system as s\ns(text)",
        "import torch\ntorch.load(path)",
        "import torch\ntorch.load(path, weights_only=False)",
        "import torch\ntorch.load(path, weights_only=is_safe)",
        "from torch import load\nload(path)",
        "import numpy as np\nnp.load(path, allow_pickle=True)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import importlib\nimportlib.import_module(name)",
        "import ctypes\nctypes.CDLL(path)",
        "from importlib.util import spec_from_file_location as s\ns('m', path)",
    ],
)
def test_what_runs_what_it_reads_is_found(source: str) -> None:
    assert list(findings(source))


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.compile(text)",
        "model.eval()",
        "import torch\ntorch.load(path, weights_only=True, mmap=True)",
        "import numpy as np\nnp.load(path, allow_pickle=False)",
        "import ast\nast.literal_eval(text)",
        "import asyncio\nasyncio.create_subprocess_exec(program)",
    ],
)
def test_what_only_reads_is_not(source: str) -> None:
    assert not list(findings(source))
