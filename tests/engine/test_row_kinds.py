"""How the rows of a plan are sorted, against saying it row by row."""

import random

from tests.engine.test_gpu_runner import Only, after, prompt_row
from wkvm.core.plan import RowPlan
from wkvm.engine.row_kinds import row_kinds, slots_of


def rows_of(rng: random.Random, n: int, *, all_decode: bool) -> list[RowPlan]:
    rows = list[RowPlan]()
    for slot in rng.sample(range(2 * n), n):
        row = prompt_row(slot, (1, 2, 3))
        if all_decode or rng.random() < 0.5:
            row = after(row, rng.randint(1, 9))
        elif rng.random() < 0.5:
            row = row._replace(position=1, fresh=False, samples=rng.random() < 0.5)
        if rng.random() < 0.2:
            row = row._replace(constraint=Only(1))
        rows.append(row)
    return rows


def test_each_row_is_where_it_belongs() -> None:
    rng = random.Random(0)
    for n in (1, 2, 40):
        for all_decode in (False, True):
            rows = rows_of(rng, n, all_decode=all_decode)
            kinds = row_kinds(rows)
            decodes = [at for at, row in enumerate(rows) if row.position >= row.n_prompt]
            assert list(kinds.decodes) == decodes
            assert list(kinds.prompts) == [at for at in range(n) if at not in decodes]
            assert list(kinds.fresh) == [at for at, row in enumerate(rows) if row.fresh]
            assert list(kinds.held) == [
                at for at, row in enumerate(rows) if row.constraint and row.samples
            ]
            assert slots_of(rows, kinds.decodes) == tuple(rows[at].slot for at in decodes)


def test_rows_that_failed_are_left_out() -> None:
    rows = [prompt_row(0, (1,)), after(prompt_row(1, (2,))), prompt_row(2, (3,))]
    kinds = row_kinds(rows).without({0: "no room"})
    assert (kinds.decodes, kinds.prompts, kinds.fresh, kinds.held) == ([1], [2], [2], [])
