"""Which ids of a step go to which connection, and in whose name."""

from collections.abc import Sequence

from wkvm_protocol.messages import Tokens, pack_ids

from wkvm.server.lanes import Choice, Lane, Outbox
from wkvm.server.routes import Routes, routes_of


def choice(box: Outbox, lane: int, index: int = 0, *, n_scored: int | None = None) -> Choice:
    plain = n_scored is None
    return Choice(Lane(lane, (), None, n_scored=n_scored), index, box, is_plain=plain)


def sent(routes: Routes, token_ids: Sequence[int]) -> list[tuple[Outbox, Tokens]]:
    return [(route.box, route.tokens(token_ids)) for route in routes.to_boxes]


def tokens(lanes: list[int], ids: list[int], choices: list[int] | None = None) -> Tokens:
    return Tokens(pack_ids(lanes), pack_ids(ids), pack_ids(choices or []))


def test_each_connection_gets_the_ids_of_its_lanes_in_order() -> None:
    one, two = Outbox(), Outbox()
    choices = {10: choice(one, 1), 11: choice(two, 1), 12: choice(one, 7), 14: choice(two, 3)}
    routes = routes_of([10, 11, 12, 13, 14], choices)  # nobody waits for 13
    assert sent(routes, [50, 51, 52, 53, 54]) == [
        (one, tokens([1, 7], [50, 52])),
        (two, tokens([1, 3], [51, 54])),
    ]
    assert sent(routes, [60, 61, 62, 63, 64])[1] == (two, tokens([1, 3], [61, 64]))


def test_a_single_id_is_a_column_too() -> None:
    box = Outbox()
    routes = routes_of([10, 11], {11: choice(box, 4)})
    assert sent(routes, [50, 51]) == [(box, tokens([4], [51]))]
    assert sent(routes_of([10], {}), [50]) == []


def test_choices_are_named_where_they_are_not_all_the_first() -> None:
    box = Outbox()
    routes = routes_of([10, 11], {10: choice(box, 4), 11: choice(box, 4, 1)})
    assert sent(routes, [50, 51]) == [(box, tokens([4, 4], [50, 51], [0, 1]))]


def test_ids_that_are_scored_are_told_of_and_not_sent() -> None:
    box = Outbox()
    scored = choice(box, 9, n_scored=5)
    routes = routes_of([10, 11], {10: scored, 11: choice(box, 4)})
    assert sent(routes, [50, 51]) == [(box, tokens([4], [51]))]
    assert routes.specials == [(0, scored)]
