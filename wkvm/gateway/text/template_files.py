"""The chat template among the files of a model."""

from pathlib import Path

import msgspec

from wkvm.gateway.errors import TemplateError
from wkvm.gateway.text.template import WORLD_STOPS, WORLD_TEMPLATE, ChatTemplate
from wkvm.gateway.text.tokenizer_files import TOKENIZER_CONFIG

TEMPLATE_FILE = "chat_template.jinja"
TEMPLATE_JSON = "chat_template.json"
"""Where models that see pictures have it, in a field of the same name as in the configuration."""


def load_chat_template(path: Path) -> ChatTemplate:
    """The chat template that belongs to a model; that of the World models if it has none.

    ``chat_template.jinja`` goes before the ``chat_template`` of ``tokenizer_config.json``, and that
    before the one of ``chat_template.json``. If it is a list, the one named ``default`` counts.

    Args:
        path: a model folder, or a file in it.

    Raises:
        TemplateError: it cannot be read or does not compile.
    """
    folder = path if path.is_dir() else path.parent
    config = _read_config(folder / TOKENIZER_CONFIG)
    tokens = {
        "bos_token": config.bos_token,
        "eos_token": config.eos_token,
        "pad_token": config.pad_token,
        "unk_token": config.unk_token,
    }
    variables = {
        name: token if isinstance(token, str) else token.content
        for name, token in tokens.items()
        if token is not None
    }
    source = _read(folder / TEMPLATE_FILE) or config.default_template
    source = source or _read_config(folder / TEMPLATE_JSON).default_template
    if source is None:
        return ChatTemplate(WORLD_TEMPLATE, variables=variables, stops=WORLD_STOPS)
    return ChatTemplate(source, variables=variables)


class _Token(msgspec.Struct):
    """A special token, where it is not just a string."""

    content: str


class _NamedTemplate(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    """The part of a ``tokenizer_config.json`` that concerns templates."""

    chat_template: str | list[_NamedTemplate] | None = None
    bos_token: str | _Token | None = None
    eos_token: str | _Token | None = None
    pad_token: str | _Token | None = None
    unk_token: str | _Token | None = None

    @property
    def default_template(self) -> str | None:
        if isinstance(self.chat_template, list):
            named = {entry.name: entry.template for entry in self.chat_template}
            return named.get("default")
        return self.chat_template


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8") if file.is_file() else None
    except (OSError, UnicodeDecodeError) as error:
        raise TemplateError(f"{file}: {error}") from error


def _read_config(file: Path) -> _TokenizerConfig:
    text = _read(file)
    try:
        return msgspec.json.decode(text or "{}", type=_TokenizerConfig)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TemplateError(f"{file}: {error}") from error
