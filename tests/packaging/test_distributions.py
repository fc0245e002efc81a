"""What the built wheel and source archive hold, and what runs without the engine's libraries."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("wkvm", "wkvm_protocol", "wkvm_client", "wkvm_bench")
MODEL = "wkvm/bundled/rwkv7-tinystories"
WITHOUT_ENGINE = (
    "import sys\n"
    "for name in ('torch', 'numpy', 'safetensors', 'triton', 'fla'): sys.modules[name] = None\n"
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-t", "sdist"]
    subprocess.run([*command, "-d", str(folder)], cwd=ROOT, check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path) -> Path:
    """The wheel's files alone, as an installation without dependencies would lay them."""
    target = wheel.parent / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def run(code: str, site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_ENGINE + code, *arguments],
        cwd=site.parent,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_wheels_top_level_is_exactly_the_four_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == set(PACKAGES)


def test_the_wheel_holds_the_bundled_model_byte_for_byte(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {n: archive.read(n) for n in archive.namelist() if n.startswith(MODEL)}
    files = [path for path in (ROOT / MODEL).iterdir() if path.is_file()]
    assert {f"{MODEL}/{path.name}" for path in files} == set(held)
    assert all(held[f"{MODEL}/{path.name}"] == path.read_bytes() for path in files)
    assert f"{MODEL}/NOTICE" in held


def test_the_source_archive_holds_the_bundled_model_and_the_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[-1] for name in archive.getnames()}
    assert {f"{MODEL}/{p.name}" for p in (ROOT / MODEL).iterdir()} <= names
    assert "tests/packaging/test_distributions.py" in names
    assert not any(name.startswith(".venv") for name in names)


@pytest.mark.parametrize("package", PACKAGES)
def test_each_package_is_marked_as_typed(wheel: Path, package: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        assert f"{package}/py.typed" in archive.namelist()


def test_the_client_and_the_protocol_import_without_the_engines_libraries(installed: Path) -> None:
    code = "import wkvm_client, wkvm_client.aio, wkvm_protocol\nprint(wkvm_client.__file__)"
    result = run(code, installed)
    assert result.returncode == 0, result.stderr
    assert Path(result.stdout.strip()).is_relative_to(installed)


def test_help_works_without_the_engines_libraries(installed: Path) -> None:
    code = "import runpy\nrunpy.run_module('wkvm', run_name='__main__', alter_sys=True)"
    result = run(code, installed, "--help")
    assert result.returncode == 0, result.stderr
    assert "serve" in result.stdout
