"""What a MODEL argument stands for, and the files around its weights that the CLI reads."""

import importlib.util
import re
from pathlib import Path

import msgspec

from wkvm.core.errors import CorruptCheckpointError, MissingExtraError, ModelNotFoundError

BUNDLED = Path(__file__).parents[1] / "bundled" / "rwkv7-tinystories"
"""The model that comes with wkvm."""
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w-]*/[A-Za-z0-9][\w.-]*")
"""What may be a name on Hugging Face: nothing is fetched by wkvm, which says so."""


def find_model(argument: str | None) -> Path:
    """The path of a model; the bundled one for None.

    Raises:
        ModelNotFoundError: there is nothing at that path.
    """
    if argument is None:
        return BUNDLED
    path = Path(argument)
    if not path.exists():
        why = "no such file or folder"
        if _REPOSITORY.fullmatch(argument):
            why += f"; if it is a model of Hugging Face: hf download {argument} --local-dir FOLDER"
        raise ModelNotFoundError(argument, why)
    return path


def model_name(path: Path) -> str:
    """What a model is called if nobody says otherwise: its folder's or file's name."""
    resolved = path.resolve()
    return resolved.name if resolved.is_dir() else resolved.stem


def require_engine() -> None:
    """Check for what only the extra ``engine`` installs, without importing it.

    Raises:
        MissingExtraError: it is not installed.
    """
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("engine", "torch")


class GenerationSettings(msgspec.Struct, frozen=True):
    """What a model's maker suggests for sampling; None where nothing is said."""

    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_new_tokens: int | None = None

    def suggested(self) -> dict[str, float | int]:
        """What is said, by the field of SamplingParams."""
        if self.do_sample is False:
            return {"temperature": 0.0}
        given = msgspec.structs.asdict(self)
        del given["do_sample"], given["max_new_tokens"]
        return {name: value for name, value in given.items() if value is not None}


def generation_settings(path: Path) -> GenerationSettings:
    """Read ``generation_config.json`` in a model's folder; without one nothing is suggested.

    Raises:
        CorruptCheckpointError: it cannot be read.
    """
    folder = path if path.is_dir() else path.parent
    file = folder / "generation_config.json"
    if not file.is_file():
        return GenerationSettings()
    try:
        return msgspec.json.decode(file.read_bytes(), type=GenerationSettings)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise CorruptCheckpointError(str(file), str(error)) from error
