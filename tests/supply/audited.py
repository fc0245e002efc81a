"""``wkvm`` with a listener in its interpreter: what begins to run, once that is asked for.

    python -m tests.supply.audited FOLDER serve ...

While there is a file ``armed`` in FOLDER, each event of the interpreter that may mean that bytes
became a program is a line of ``heard`` there: the event, and what it is about.
"""

import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

ALWAYS = (
    *("pickle.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile"),
    *("pty.", "subprocess.", "ctypes.", "code.__new__", "function.__new__", "cpython.run_"),
    *("urllib.", "http.client.", "ftplib.", "smtplib.", "webbrowser.", "socket.connect"),
    *("sqlite3.enable_load_extension", "sqlite3.load_extension", "shutil.unpack_archive"),
)
"""What nothing that is asked for over a socket should begin, in whatever code."""
UNLESS_OURS = ("exec", "compile", "marshal.")
"""What also happens to text of the installation: when one of its modules is imported, and when
msgspec reads the annotations of a class, as the first message of its kind comes."""
READS_CODE = ("<frozen importlib", os.path.join("msgspec", "_utils.py"))


def listen(folder: Path) -> None:
    """Begin to listen; there is no way to end that."""
    armed = folder / "armed"
    heard = os.open(folder / "heard", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def hook(event: str, args: tuple[Any, ...]) -> None:
        if event.startswith(ALWAYS):
            is_one = True
        elif event.startswith(UNLESS_OURS):
            is_one = not _is_ours()
        else:
            return
        if is_one and armed.exists():
            about = " ".join(repr(one)[:200] for one in args)
            os.write(heard, f"{event} {about}\n".encode(errors="replace"))

    sys.addaudithook(hook)


def _is_ours() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(READS_CODE[0]) or file.endswith(READS_CODE[1]):
            return True
        frame = frame.f_back
    return False


def main() -> int:
    """Listen, and do what ``wkvm`` does."""
    from wkvm.cli import main as wkvm

    listen(Path(sys.argv[1]))
    return wkvm(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
