"""Stacks of threads, as lines that name code and nothing else: no values, no paths of a machine."""

import os
import sys
import threading
import traceback
from types import FrameType, TracebackType

MAX_FRAMES = 64
"""Of one stack; what is nearest to where it stands is kept."""


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


def stack_of_thread(ident: int | None) -> list[str]:
    """Where a thread is now; empty if it is gone."""
    return stack_of(_frames().get(-1 if ident is None else ident))


def stacks_of_threads() -> list[dict[str, object]]:
    """Where all threads are now."""
    frames = _frames()
    return [
        {"thread": one.name, "stack": stack_of(frames.get(-1 if one.ident is None else one.ident))}
        for one in threading.enumerate()
    ]


def _frames() -> dict[int, FrameType]:
    # Private by its name alone: it is documented, and there is no other way.
    return sys._current_frames()  # pyright: ignore[reportPrivateUsage]


def _lines(summary: traceback.StackSummary, *, newest_last: bool = False) -> list[str]:
    frames = summary[-MAX_FRAMES:] if newest_last else summary[:MAX_FRAMES]
    return [f"{_short(one.filename)}:{one.lineno} in {one.name}" for one in frames]


def _short(path: str) -> str:
    """A file's path from where packages are found on; only its name if it is of none."""
    for folder in sys.path:
        if folder and path.startswith(folder + os.sep):
            return path[len(folder) + 1 :]
    return os.path.basename(path)
