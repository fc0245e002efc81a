"""Numbers to a device and back; on a CPU, where a copy is there at once."""

from typing import Any

import pytest
import torch

from wkvm.engine.transfers import Beside, Transfers


def test_numbers_keep_their_values_and_get_the_dtype_asked_for() -> None:
    transfers = Transfers("cpu")
    for dtype, numbers in (
        (torch.int64, [0, -1, 2**62]),
        (torch.int32, [-1, 2**31 - 1]),
        (torch.bool, [0, 1, 1]),
    ):
        up = transfers.up(numbers, dtype)
        assert up.dtype == dtype
        assert [int(one) for one in up.tolist()] == numbers
    assert transfers.up([]).shape == (0,)


def test_bytes_become_words_with_the_first_byte_lowest() -> None:
    words = Transfers("cpu").words_up([b"\x01", b"\x00\x00\x00\x00\x80"], 2)
    assert words.dtype == torch.int32
    assert words.tolist() == [[1, 0], [0, 0x80]]


def test_a_copy_is_apart_from_what_was_copied() -> None:
    transfers, tensor = Transfers("cpu"), torch.tensor([1, 2])
    copy = transfers.down(tensor)
    tensor.fill_(9)
    assert copy.tolist() == [1, 2]


def test_a_copy_that_was_given_back_is_used_again_and_no_other_is() -> None:
    transfers = Transfers("cpu")
    first, second = (transfers.down_again(torch.tensor([n])) for n in (1, 2))
    assert first.data_ptr() != second.data_ptr()
    transfers.give_back(first)
    third = transfers.down_again(torch.tensor([3]))
    assert third.data_ptr() == first.data_ptr()
    assert (second.item(), third.item()) == (2, 3)


def test_a_mark_can_be_waited_for_more_than_once() -> None:
    mark = Transfers("cpu").mark()
    mark.wait()
    mark.wait()


class FakeEvent:
    """Notes how it was made, and how often it was recorded."""

    def __init__(self, *, blocking: bool) -> None:
        self.blocking = blocking
        self.n_records = 0

    def record(self) -> None:
        self.n_records += 1

    def synchronize(self) -> None:
        """It is there."""


def test_the_event_of_a_mark_sleeps_and_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    transfers = Transfers("cuda")
    first: Any = transfers.mark()
    event = first._event
    assert event.blocking
    first.wait()
    second: Any = transfers.mark()
    assert second._event is event
    assert event.n_records == 2


def test_on_a_cpu_what_is_queued_beside_is_done_at_once() -> None:
    beside, done = Beside("cpu"), list[int]()
    beside.begin()
    with beside.queue():
        done.append(1)
    beside.join()
    assert done == [1]
