"""The files of the console, which are built elsewhere and shipped in the package."""

import gzip
import mimetypes
from dataclasses import dataclass
from pathlib import Path

import msgspec

FOLDER = Path(__file__).parent / "console"
INDEX = "index.html"
ICON = "icon.svg"
ASSETS = "assets/"


class _Manifest(msgspec.Struct):
    files: dict[str, str]


@dataclass(frozen=True, slots=True)
class Page:
    """One file as it is sent.

    Attributes:
        packed: the same by gzip; empty where that is no shorter.
        digest: hex, of the body.
        is_final: whether no file of its name will ever hold anything else.
    """

    body: bytes
    packed: bytes
    media: str
    digest: str
    is_final: bool


class Pages:
    """The files that the manifest names, read when the first of them is asked for."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._folder = folder
        self._pages: dict[str, Page] | None = None

    def get(self, name: str) -> Page | None:
        """A file. The first call takes some 20 ms, others nothing."""
        if self._pages is None:
            self._pages = self._read()
        return self._pages.get(name)

    def _read(self) -> dict[str, Page]:
        try:
            data = (self._folder / "manifest.json").read_bytes()
            files = msgspec.json.decode(data, type=_Manifest).files
            return {name: _page(self._folder, name, digest) for name, digest in files.items()}
        except (OSError, msgspec.MsgspecError):
            return {}


def _page(folder: Path, name: str, digest: str) -> Page:
    body = (folder / name).read_bytes()
    packed = gzip.compress(body, mtime=0)
    return Page(
        body=body,
        packed=packed if len(packed) < len(body) else b"",
        media=mimetypes.guess_type(name)[0] or "application/octet-stream",
        digest=digest,
        is_final=name.startswith(ASSETS),
    )
