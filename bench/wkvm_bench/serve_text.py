"""What ``wkvm bench serve`` prints of each load."""

from collections.abc import Mapping, Sequence

from wkvm_bench.figures import Rung, Spread
from wkvm_bench.serve_flags import Load

HEAD = (
    "requests  failed      /s   ids/s  steady |       first id, ms      |     between ids, ms     "
    "|       request, ms       |  generator\n"
    "                                         |     p50     p90     p99 |     p50     p90     p99 "
    "|     p50     p90     p99 | cores  lag, ms\n"
)
UNSUSTAINED, N_TO_TELL = 0.8, 20
"""A server that ends fewer of the requests that come falls behind, if it is not just their number
that is small."""


def manner(loads: Sequence[Load]) -> str:
    """From when times count, which is not the same with and without a rate."""
    if all(load.rate is None for load in loads):
        return (
            "closed loop: a request is sent when another one is over, and its times count from"
            " then. What those wait who come whenever they like, --request-rate tells.\n"
        )
    return (
        "open loop: requests come at random times, whether or not others are over, and their times"
        " count from when they were due, so that who waits for a server that stalls is counted.\n"
    )


def row(
    rung: Rung, load: Load, *, bounds: Mapping[str, float], ceiling: float | None, is_bound: bool
) -> str:
    """A load as a line of the table, and lines for what has to be known of it."""
    steady = "-" if rung.steady_ids_per_s is None else f"{rung.steady_ids_per_s:,.0f}"
    n_failed = rung.n_requests - rung.n_completed
    lag = "-" if rung.generator_lag is None else f"{rung.generator_lag.p99:.1f}"
    cells = [
        f"{rung.n_requests:>8} {n_failed:>7} {rung.n_completed * rung.per_s:>7,.1f}"
        f" {rung.ids_per_s:>7,.0f} {steady:>7} ",
        *(f" {_three(spread)} " for spread in (rung.ttft, rung.itl, rung.e2e)),
        f"  {rung.generator_cpu:.2f} {lag:>8}",
    ]
    lines = ["|".join(cells)]
    if rung.errors:
        lines.append(f"    failed: {errors(rung)}")
    if rung.n_good is not None:
        kept = ", ".join(f"{name} {ms:g} ms" for name, ms in bounds.items())
        share = 100 * rung.n_good / max(1, rung.n_requests)
        lines.append(
            f"    goodput: {rung.n_good * rung.per_s:,.2f} requests/s within {kept} ({share:.0f}%)"
        )
    took = rung.n_completed * rung.per_s
    is_many = rung.n_requests >= N_TO_TELL
    if load.rate is not None and is_many and took < UNSUSTAINED * load.rate:
        lines.append(
            f"    {load.rate:g} requests came a second, {took:,.2f} were answered: times grow with"
            " the length of the run"
        )
    if is_bound:
        lines.append("    the load generator was busy or late: the server may do better")
    if ceiling is not None:
        share = 100 * rung.n_arrivals * rung.per_s / ceiling
        lines.append(
            f"    {share:.0f}% of what the generator takes from a server that does nothing"
        )
    return "\n".join(lines)


def errors(rung: Rung) -> str:
    """How many requests failed, by what went wrong."""
    return ", ".join(f"{n} {what}" for what, n in sorted(rung.errors.items()))


def _three(spread: Spread | None) -> str:
    if spread is None:
        return " ".join(["-".rjust(7)] * 3)
    return " ".join(
        f"{ms:>7.{2 if ms < 100 else 0}f}" for ms in (spread.p50, spread.p90, spread.p99)
    )
