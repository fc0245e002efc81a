"""The console's recording is made of its frames."""

import json
from pathlib import Path

import pytest
from PIL import Image

from tools import console_recording


@pytest.fixture
def frames(tmp_path: Path) -> Path:
    shown = [("a", "red", 100), ("b", "red", 200), ("c", "blue", 300)]
    for name, colour, _ in shown:
        Image.new("RGB", (20, 10), colour).save(tmp_path / f"{name}.png")
    listed = [{"file": f"{name}.png", "ms": ms} for name, _, ms in shown]
    (tmp_path / "frames.json").write_text(json.dumps(listed), encoding="utf-8")
    return tmp_path


def test_frames_that_are_equal_are_one_and_each_is_shown_as_long_as_it_was(frames: Path) -> None:
    images, times = console_recording.read(frames)
    assert (len(images), times) == (2, [300, 300])


def test_what_comes_out_is_animated_and_within_its_limit_or_an_error(
    frames: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = frames / "out.webp"
    arguments = ["--frames", str(frames), "--output", str(target)]
    assert console_recording.main(arguments) == 0
    with Image.open(target) as written:
        assert (written.format, getattr(written, "n_frames", 1)) == ("WEBP", 2)
    monkeypatch.setattr(console_recording, "MAX_BYTES", target.stat().st_size - 1)
    assert console_recording.main(arguments) == 1
