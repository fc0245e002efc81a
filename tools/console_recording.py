"""Put the frames of the console's recording together: ``python -m tools.console_recording``.

``npm run pictures`` in ``clients/console`` takes the frames, and says how long each is shown.
Frames that are equal are one. What comes out is an animated WebP, within a limit of size.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parents[1]
FRAMES = ROOT / "clients/console/e2e/shots/frames"
TARGET = ROOT / "docs/img/console.webp"
MAX_BYTES = 3 * 1024 * 1024
WIDTH = 1120


def read(folder: Path) -> tuple[list[Image.Image], list[int]]:
    """The frames of a folder, and how long each is shown, in milliseconds.

    Raises:
        OSError: they are not there.
    """
    shown = json.loads((folder / "frames.json").read_text(encoding="utf-8"))
    frames, times = list[Image.Image](), list[int]()
    for one in shown:
        with Image.open(folder / one["file"]) as opened:
            frame = opened.convert("RGB")
        if frame.width > WIDTH:
            frame = frame.resize((WIDTH, round(frame.height * WIDTH / frame.width)))
        if frames and frame.tobytes() == frames[-1].tobytes():
            times[-1] += one["ms"]
        else:
            frames.append(frame)
            times.append(one["ms"])
    return frames, times


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the recording.

    Returns:
        The exit status: 1 if it is larger than it may be.
    """
    parser = argparse.ArgumentParser(description="Put the frames of the recording together.")
    parser.add_argument("--frames", type=Path, default=FRAMES)
    parser.add_argument("--output", type=Path, default=TARGET)
    given = parser.parse_args(arguments)
    frames, times = read(given.frames)
    frames[0].save(
        given.output,
        save_all=True,
        append_images=frames[1:],
        duration=times,
        loop=0,
        lossless=True,
        method=4,
        minimize_size=True,
    )
    n_bytes = given.output.stat().st_size
    print(f"{given.output}: {len(frames)} frames, {sum(times) / 1000:.0f} s, {n_bytes} bytes")
    return int(n_bytes > MAX_BYTES)


if __name__ == "__main__":
    sys.exit(main())
