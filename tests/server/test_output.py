"""What waits to be sent, on one transport: how much, in which pieces, and in what order."""

from typing import Any

from tests.server.notes import Notes
from wkvm.server.output import Output


class Stuck(Notes):
    """A transport that takes one write, and is then stuck until told otherwise."""

    output: Output

    def write(self, data: Any) -> None:
        super().write(data)
        self.n_unsent += len(data)
        self.output.stops()

    def drains(self) -> None:
        """All of it was sent."""
        self.n_unsent = 0
        self.output.goes_on()


def stuck(high: int = 40_000) -> tuple[Stuck, Output, list[str]]:
    transport, notes = Stuck(), list[str]()
    output = transport.output = Output(
        transport,
        high=high,
        on_full=lambda: notes.append("full"),
        on_free=lambda: notes.append("free"),
    )
    return transport, output, notes


def test_a_transport_is_handed_little_at_a_time_and_all_in_order() -> None:
    transport, output, notes = stuck()
    sent = [bytes([n % 256]) * 20 for n in range(1000)]
    for one in sent:
        output.write(one)
    assert transport.written == sent[:1]
    assert output.n_unsent == 20_000
    for _ in range(2):
        transport.drains()
    assert [len(one) for one in transport.written] == [20, 10_000, 9_980]
    assert b"".join(transport.written) == b"".join(sent)
    assert notes == []


def test_it_is_full_beyond_its_limit_until_a_quarter_is_left() -> None:
    transport, output, notes = stuck()
    output.write(b"a" * 20)
    output.write(b"a" * 39_980)
    assert (output.is_full, notes) == (False, [])
    output.write(b"a")
    assert (output.is_full, notes) == (True, ["full"])
    for left in (39_981, 29_981, 19_981):
        transport.drains()
        assert (output.n_unsent, output.is_full) == (left, True)
    transport.drains()
    assert (output.is_full, notes) == (False, ["full", "free"])


def test_what_is_flushed_is_handed_over_whole() -> None:
    transport, output, _ = stuck()
    output.cork()
    output.write(b"one")
    output.write(b"two")
    output.flush()
    output.write(b"three")
    output.write(b"four")
    output.flush()
    assert transport.written == [b"onetwo", b"threefour"]
