"""Chapters of reports on kernels, peers, and states: what is made of lines."""

from typing import Any

import pytest
from wkvm_bench.report.peers import in_order
from wkvm_bench.report.records import Record
from wkvm_bench.report.resident import frontier_table, ladders_table
from wkvm_bench.report.rooflines import COPY_RATE, MATRIX_RATE, gpu_table, point, points

RECURRENCE = "recurrence of one layer, 32 heads, {} rows, float32, at once, 1 warps"
PRODUCT = {"file": "2026-11-29-gpu-products-1.jsonl", "product": "key", "rows": 8}


def recurrence(rows: int, tb_per_s: float) -> Record:
    file = "2026-11-29-gpu-recurrence-time-3.jsonl"
    timing = RECURRENCE.format(rows)
    return {"file": file, "timing": timing, "median_us": 1.0, "tb_per_s": tb_per_s}


def compared(bench: str, case: str, besides: dict[str, Any]) -> Record:
    side = {"median": 10.0, "p10": 9.0, "p90": 11.0}
    ratio = {"median": 2.0, "p10": 1.5, "p90": 2.5}
    sides = {"a": {"name": "wkvm", **side}, "b": {"name": "other", **side}, "ratio": ratio}
    return {"bench": bench, "case": case, "unit": "ms", "device": "D", "besides": besides, **sides}


def test_a_kernel_that_moves_bytes_as_fast_as_a_copy_is_at_its_roof() -> None:
    found = point(recurrence(256, COPY_RATE / 1e12))
    assert found is not None
    assert found.share == pytest.approx(1.0)


def test_a_product_of_many_rows_has_the_roof_of_products_and_one_of_few_that_of_a_copy() -> None:
    many = point({**PRODUCT, "N": 8192, "K": 2048, "rows": 1024, "us": 100.0})
    few = point({**PRODUCT, "N": 8192, "K": 2048, "us": 10.0})
    assert many is not None
    assert few is not None
    operations = 2.0 * 8192 * 2048
    assert many.share == pytest.approx(operations * 1024 / 100e-6 / MATRIX_RATE)
    n_bytes = 2.0 * (8192 * 2048 + 8 * (8192 + 2048))
    assert few.share == pytest.approx(n_bytes / 10e-6 / COPY_RATE)


def test_of_several_plans_the_fastest_counts_and_rows_are_in_the_order_of_numbers() -> None:
    records = [recurrence(1024, 3.0), recurrence(256, 2.0), recurrence(256, 3.5)]
    found = points(records)
    assert [one.load for one in found] == ["256 rows", "1,024 rows"]
    assert [one.share for one in found] == pytest.approx([3.5 / 4.2, 3.0 / 4.2])
    assert "| RWKV-7 | 256 rows | 1.125 | 3.938 | 83% |" in gpu_table(records)


def test_lines_of_other_files_and_of_checks_are_no_kernels() -> None:
    assert point({**recurrence(1, 1.0), "file": "other.jsonl"}) is None
    assert point({"file": PRODUCT["file"], "check": "x"}) is None
    assert point({**recurrence(1, 1.0), "timing": "decode step, graph"}) is None


def test_a_ladder_has_a_row_for_each_operation_and_size_and_a_column_for_each_number() -> None:
    records = [
        compared("ladders", f"{operation}, {n} states", {"bytes of a state": 2**20, "states": n})
        for operation in ("resume", "fork")
        for n in (8, 1)
    ]
    assert ladders_table(records[:3]).splitlines() == [
        "| | a state | 1 at once | 8 at once | on |",
        "|---|---|---|---|---|",
        "| fork | 1 MiB | - | 10 ms, 2.00 (1.50 to 2.50) | D |",
        "| resume | 1 MiB | 10 ms, 2.00 (1.50 to 2.50) | 10 ms, 2.00 (1.50 to 2.50) | D |",
    ]


def test_the_frontier_tells_sessions_and_rates_by_context() -> None:
    sessions = {"sessions, wkvm": 529.0, "sessions, transformer": 4.0}
    records = [
        compared("frontier", "x", {"context, tokens": context, "cap, MiB": 256.0, **sessions})
        for context in (4096.0, 256.0)
    ]
    rows = frontier_table(records).splitlines()[2:]
    assert rows[0] == "| 256 tokens, 256 MiB | 529, 4 | 10, 10 | 2.00 (1.50 to 2.50) | D |"
    assert rows[1].startswith("| 4,096 tokens")


def test_peers_are_in_the_order_of_what_is_done() -> None:
    records = [compared("peers", case, {}) for case in ("decode, rwkv", "a prompt, rwkv")]
    rows = in_order(records).splitlines()[2:]
    assert [row.split(" | ")[0] for row in rows] == [
        "| peers, a prompt, rwkv",
        "| peers, decode, rwkv",
    ]
