"""The pictures of the documents are what their tool draws."""

import xml.etree.ElementTree as ET

import pytest

from tools.pictures import FOLDER, PICTURES


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_the_one_that_is_drawn(name: str) -> None:
    drawn = PICTURES[name]()
    assert (FOLDER / name).read_text(encoding="utf-8") == drawn, "run: python -m tools.pictures"
    ET.fromstring(drawn)
