"""The tool that shows that a state remembers, over a few names."""

import json
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tools import state_memory
from tools.state_memory import (
    BUNDLED,
    BitsChangedError,
    Margins,
    Reader,
    measure,
    plot,
    sessions,
    summary,
)
from wkvm.state.image import StateImage


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(BUNDLED)


def test_every_name_is_planted_and_is_a_control_once_in_each_scene() -> None:
    planted = sessions()
    names = [one.name for one in planted]
    assert len(names) > 200
    assert sorted(names) == sorted(one.control for one in planted)
    assert all(one.name != one.control for one in planted)
    assert len({one.text for one in planted}) == len(planted)
    assert all(one.text.count(one.name) == 1 for one in planted)
    assert not any(one.control in one.text.replace(one.name, "") for one in planted)


def test_a_changed_bit_on_the_way_is_found(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = state_memory.moved

    def damaged(one: Reader, state: StateImage) -> StateImage:
        arrived = moved(one, state)
        record = arrived.record.clone()
        record[2] ^= 1
        return replace(arrived, record=record)

    monkeypatch.setattr(state_memory, "moved", damaged)
    with torch.inference_mode(), pytest.raises(BitsChangedError, match="migrated"):
        list(measure(reader, (), 1))


def test_names_are_one_id_each(reader: Reader) -> None:
    ids = {reader.name_id(one.name) for one in sessions()}
    assert len(ids) == 60


def test_a_planted_name_is_remembered_and_forgotten_with_decay(reader: Reader) -> None:
    with torch.inference_mode():
        whole, half, none = measure(reader, (1.0, 0.5, 0.0), 2)
    assert (whole.n, whole.n_names) == (16, 4)
    assert whole.low > 0
    assert whole.mean > half.mean > none.mean
    assert abs(none.mean) < 0.5
    assert whole.positive == 1


def test_the_interval_is_of_the_names_means() -> None:
    planted = sessions(1)[:4] + sessions(1)[4:]
    found = summary(0.5, planted, torch.tensor([1.0, 1, 1, 1, 2, 2, 2, -2]))
    assert (found.n, found.n_names, found.mean) == (8, 2, 1.0)
    assert found.low == found.high == 1.0
    assert found.positive == 7 / 8


def test_the_plot_is_xml_with_a_point_for_each_factor() -> None:
    rows = [Margins(f, 8, 2, 6 * f, 6 * f - 1, 6 * f + 1, 1.0) for f in (1.0, 0.5, 0.0)]
    root = ET.fromstring(plot(rows))
    assert len(root.findall("{http://www.w3.org/2000/svg}circle")) == 3


def test_lines_are_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "FACTORS", (1.0,))
    output, picture = tmp_path / "lines.jsonl", tmp_path / "plot.svg"
    state_memory.main(["--names", "1", "--output", str(output), "--plot", str(picture)])
    (line,) = output.read_text().splitlines()
    assert json.loads(line)["n_names"] == 2
    assert picture.read_text().startswith("<svg")
