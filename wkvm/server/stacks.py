"""Where threads are and exceptions came from: lines that name code, no value and no path."""

import os
import sys
import threading
import traceback
from collections.abc import Mapping
from types import FrameType, TracebackType

MAX_FRAMES = 64
"""Of one stack; what is nearest to where it stands is kept."""
MAX_CAUSES = 8
"""Of one exception, itself included."""


def stack_of(frame: FrameType | None) -> list[str]:
    """The stack of a frame, outermost first: ``wkvm/engine/loop.py:210 in _turn``."""
    return _lines(traceback.StackSummary.extract(traceback.walk_stack(frame), lookup_lines=False))[
        ::-1
    ]


def stack_of_traceback(found: TracebackType | None) -> list[str]:
    """Where an exception came from, outermost first."""
    return _lines(
        traceback.StackSummary.extract(traceback.walk_tb(found), lookup_lines=False),
        newest_last=True,
    )


def causes_of(error: BaseException) -> list[BaseException]:
    """An exception and its causes, newest first; what was hidden by ``from None`` is not told."""
    found = [error]
    while len(found) < MAX_CAUSES:
        at = found[-1]
        cause = at.__cause__ or (None if at.__suppress_context__ else at.__context__)
        if cause is None:
            break
        found.append(cause)
    return found


def told_of(error: BaseException) -> dict[str, object]:
    """The type of an exception, and where it came from. Not its message."""
    name = f"{type(error).__module__}.{type(error).__qualname__}"
    return {"type": name, "stack": stack_of_traceback(error.__traceback__)}


def stack_of_thread(ident: int | None) -> list[str]:
    """Where a thread is now; empty if it is gone."""
    return _stack_in(_frames(), ident)


def stacks_of_threads() -> list[dict[str, object]]:
    """Where all threads are now."""
    frames = _frames()
    return [
        {"thread": one.name, "stack": _stack_in(frames, one.ident)} for one in threading.enumerate()
    ]


def _frames() -> dict[int, FrameType]:
    # Private by its name alone: it is documented, and there is no other way.
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]


def _stack_in(frames: Mapping[int, FrameType], ident: int | None) -> list[str]:
    return [] if ident is None else stack_of(frames.get(ident))


def _lines(summary: traceback.StackSummary, *, newest_last: bool = False) -> list[str]:
    frames = summary[-MAX_FRAMES:] if newest_last else summary[:MAX_FRAMES]
    return [f"{_short(one.filename)}:{one.lineno} in {one.name}" for one in frames]


def _short(path: str) -> str:
    """A file's path from where packages are found on; only its name if it is of none."""
    for folder in sys.path:
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    return os.path.basename(path)
