"""GET /metrics: the engine's counters and the gateway's own, for Prometheus.

All is read when it is asked for: one question to the engine, and integers that the gateway counts
anyway. The families and their labels are fixed here; no client can add one.
"""

import re
from collections.abc import Iterable, Mapping

from aiohttp import web
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from wkvm import __version__
from wkvm.gateway.calls import Call, Gateway
from wkvm.gateway.monitoring import totals
from wkvm.gateway.monitoring.totals import added_up, left_behind, numbers_of
from wkvm.gateway.monitoring.watch import Reading
from wkvm.gateway.peers import Counted, Tell

_GAUGES = {
    "n_slots": ("wkvm_slots", "States that can be live at once."),
    "n_free_slots": ("wkvm_slots_free", "Slots that are free."),
    "n_pages": ("wkvm_pages", "Pages of the guest pool, of models with attention layers."),
    "n_free_pages": ("wkvm_pages_free", "Pages that are free."),
    "n_queued": ("wkvm_requests_waiting", "Requests that wait for a slot."),
    "n_running": ("wkvm_requests_running", "Requests that hold a slot."),
    "n_paused": ("wkvm_requests_paused", "Running requests that lack credit or a reader."),
    "n_hibernated": ("wkvm_requests_hibernated", "Requests whose states wait in host memory."),
    "n_connections": ("wkvm_protocol_connections", "Connections to the engine."),
    "n_lanes": ("wkvm_protocol_lanes", "Generations that are open on them."),
    "n_states_loading": ("wkvm_states_loading", "Requests that wait for their states' bytes."),
    "n_states_running": ("wkvm_states_running", "Requests on states that run."),
    "n_states_committing": ("wkvm_states_committing", "Requests whose states are being kept."),
    "n_states_parked": ("wkvm_states_parked", "Requests that wait while their states are moved."),
    "slot_bytes": ("wkvm_slot_bytes", "Bytes of one slot, without pages of the guest pool."),
    "n_states_host": ("wkvm_states_host", "States in host memory."),
    "state_host_bytes": ("wkvm_states_host_bytes", "Bytes of states in host memory."),
    "state_host_limit_bytes": ("wkvm_states_host_limit_bytes", "What these may take."),
    "n_states_disk": ("wkvm_states_disk", "States on disk."),
    "state_disk_bytes": ("wkvm_states_disk_bytes", "Bytes of the files of states on disk."),
    "n_watches": ("wkvm_watches", "Watches that tell of states."),
    "store_refuses": (
        "wkvm_store_refuses",
        "1 if the disk has no room for a durable state, 2 if it or the store failed, else 0.",
    ),
    "memory_refuses": (
        "wkvm_memory_refuses",
        "1 if the engine is short of memory and takes less, 2 if it takes nothing new, else 0.",
    ),
    "n_prefix_waiting": ("wkvm_prefix_waiting", "Requests that wait for another one's prompt."),
}
_COUNTERS = {
    "requests_total": ("wkvm_requests", "Requests that the engine took; each choice is one."),
    "prompt_tokens_total": ("wkvm_prompt_tokens", "Ids of prompts absorbed."),
    "output_tokens_total": ("wkvm_output_tokens", "Ids produced, without stop ids."),
    "steps_total": ("wkvm_steps", "Steps run, failed ones included."),
    "loop_stalls_total": (
        "wkvm_loop_stalls",
        "Times that the engine's event loop did not turn for longer than --max-loop-lag-s.",
    ),
    "state_starts_total": ("wkvm_state_starts", "Requests that went on from a state."),
    "cached_tokens_total": ("wkvm_cached_tokens", "Tokens that came with these states."),
    "state_commits_total": ("wkvm_state_commits", "Ends of requests that were kept as states."),
    "state_commits_failed_total": ("wkvm_state_commits_failed", "Those that could not be kept."),
    "starts_total": ("wkvm_slot_loads", "Slots that were filled with a state for a request."),
    "saves_total": ("wkvm_slot_saves", "States copied from slots to host memory."),
    "hibernated_total": ("wkvm_hibernations", "Times that a request gave up its slot."),
    "refused_total": ("wkvm_refused_requests", "Choices that found no room, or too long a queue."),
    "too_late_total": (
        "wkvm_too_late_requests",
        "Requests given up in the queue for want of time.",
    ),
    "prefix_hits_total": ("wkvm_prefix_hits", "Requests that went on from another one's prompt."),
    "prefix_misses_total": ("wkvm_prefix_misses", "Requests that could have, and found none."),
    "prefix_tokens_total": ("wkvm_prefix_tokens", "Tokens that were not computed for that."),
    "prefix_evictions_total": ("wkvm_prefix_evictions", "Checkpoints of prompts given up."),
}
_TIERS = {
    "wkvm_prefix_entries": (
        "Checkpoints of prompts that are kept.",
        {"device": "n_prefixes_device", "host": "n_prefixes_host"},
    ),
    "wkvm_prefix_bytes": (
        "What they take.",
        {"device": "prefix_device_bytes", "host": "prefix_host_bytes"},
    ),
}
_ENDS = {
    "stopped_total": "stop",
    "length_total": "length",
    "cancelled_total": "cancelled",
    "timed_out_total": "timed_out",
    "finished_error_total": "error",
}
_SECONDS = {
    "queue_us": ("wkvm_request_queue_time_seconds", "From submission to a slot."),
    "first_token_us": ("wkvm_time_to_first_token_seconds", "From submission to the first id."),
    "inter_token_us": ("wkvm_inter_token_latency_seconds", "From one id of a request to its next."),
    "request_us": ("wkvm_e2e_request_latency_seconds", "From submission to the end."),
    "step_us": ("wkvm_step_duration_seconds", "One step of the engine."),
}
_LENGTHS = {
    "prompt_length": ("wkvm_request_prompt_tokens", "Ids of a request's prompt."),
    "output_length": ("wkvm_request_output_tokens", "Ids that a request produced."),
}
_OPEN_METRICS = "application/openmetrics-text"
_BOUND = re.compile(r"(?P<name>\w+)_le_(?P<bound>\d+)")


async def metrics(call: Call) -> web.Response:
    """GET /metrics, in Prometheus's text format, or OpenMetrics to who accepts that."""
    reading = await call.gateway.watch.read()
    numbers = await _numbers(call.gateway)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Snapshot(call.gateway, reading, numbers))
    ProcessCollector(registry=registry)
    # Not the client's header itself: what the library reads in it can make it raise.
    wants_open_metrics = _OPEN_METRICS in call.request.headers.get("Accept", "")
    encode, content_type = choose_encoder(_OPEN_METRICS if wants_open_metrics else "")
    return web.Response(body=encode(registry), headers={"Content-Type": content_type})


async def _numbers(gateway: Gateway) -> dict[str, float]:
    """What all processes of the port have counted.

    One that does not answer counts with what it last said: sums do not fall.
    """
    ours, peers = numbers_of(gateway), gateway.peers
    if peers is None:
        return ours
    for index, answer in await peers.ask_all(Tell()):
        if isinstance(answer, Counted):
            peers.numbers[index] = answer.numbers
        else:
            peers.numbers[index] = left_behind(peers.numbers.get(index, {}))
    return added_up(ours, *peers.numbers.values())


class _Snapshot(Collector):
    """Everything as it is now."""

    def __init__(self, gateway: Gateway, reading: Reading, numbers: Mapping[str, float]) -> None:
        self._gateway = gateway
        self._reading = reading
        self._numbers = numbers

    def collect(self) -> Iterable[Metric]:
        """All families."""
        yield from _about(self._gateway)
        yield from _of_http(self._numbers)
        reading = self._reading
        is_draining = reading.is_draining or self._gateway.is_draining
        yield _gauge("wkvm_engine_up", "Whether the engine answers.", int(reading.is_up))
        yield _gauge("wkvm_draining", "Whether no new requests are taken.", int(is_draining))
        yield from _of_engine(reading.counters)
        yield from _for_routers(reading.counters, self._gateway.model)


def _about(gateway: Gateway) -> Iterable[Metric]:
    info = gateway.engines.info
    build = {"version": __version__, "engine": info.server}
    model = {
        "model": info.model,
        "model_digest": info.model_digest,
        "layout_fingerprint": info.layout_fingerprint,
        "tokenizer_digest": info.tokenizer_digest,
    }
    for name, what, labels in (
        ("wkvm_build_info", "What runs.", build),
        ("wkvm_model_info", "What is served.", model),
    ):
        family = GaugeMetricFamily(name, what, labels=list(labels))
        family.add_metric(list(labels.values()), 1)
        yield family


def _of_http(numbers: Mapping[str, float]) -> Iterable[Metric]:
    answered = CounterMetricFamily(
        "wkvm_http_requests",
        "Requests answered, by route and class of the status; gone: the client left before.",
        labels=["method", "route", "status"],
    )
    n_open = GaugeMetricFamily(
        "wkvm_http_requests_open", "Requests that are being answered.", labels=["method", "route"]
    )
    ignored = CounterMetricFamily(
        "wkvm_http_ignored_fields",
        "Fields of bodies that no route knows; other: such as have no well-known name.",
        labels=["route", "field"],
    )
    for name in sorted(numbers):
        kind, _, labels = name.partition(" ")
        if kind == totals.ANSWERED:
            answered.add_metric(labels.split(" "), numbers[name])
        elif kind == totals.OPEN:
            n_open.add_metric(labels.split(" "), numbers[name])
        elif kind == totals.IGNORED:
            # A client may have called the field anything.
            ignored.add_metric(labels.split(" ", 1), numbers[name])
    yield answered
    yield n_open
    yield ignored
    for name, family, what in (
        (totals.STREAMS, "wkvm_http_streams_open", "Answers that are being streamed."),
        (totals.TURNS, "wkvm_session_turns", "Turns of sessions that run."),
        (totals.RESPONSES, "wkvm_responses_running", "Responses that are being made."),
        (totals.LEFT, "wkvm_http_requests_left", "Requests that go on without a client."),
        (totals.WORKERS, "wkvm_http_workers", "Processes that serve HTTP and answer."),
        (totals.LAG, "wkvm_http_loop_lag_seconds", "How late event loops with streams were."),
    ):
        yield _gauge(family, what, numbers.get(name, 0))
    yield CounterMetricFamily(
        "wkvm_http_events_held",
        "Times that ids were left for a later event because the event loop was late.",
        value=numbers.get(totals.HELD, 0),
    )
    yield CounterMetricFamily(
        "wkvm_http_refused_keys",
        "Requests whose key was refused.",
        value=numbers.get(totals.REFUSED_KEYS, 0),
    )


def _of_engine(counters: Mapping[str, int]) -> Iterable[Metric]:
    for name, (family, what) in _GAUGES.items():
        if name in counters:
            yield _gauge(family, what, counters[name])
    if "step_age_us" in counters:
        what = "For how long the engine has had something to do and has not turned."
        yield _gauge("wkvm_step_age_seconds", what, counters["step_age_us"] / 1e6)
    if "loop_lag_us" in counters:
        what = "The longest that the engine's event loop did not turn, of the last 10 s."
        yield _gauge("wkvm_loop_lag_seconds", what, counters["loop_lag_us"] / 1e6)
    for name, (family, what) in _COUNTERS.items():
        if name in counters:
            yield CounterMetricFamily(family, what, value=counters[name])
    yield from _tiers(counters)
    ended = CounterMetricFamily("wkvm_requests_ended", "Requests that ended.", labels=["reason"])
    for name, reason in _ENDS.items():
        if name in counters:
            ended.add_metric([reason], counters[name])
    if ended.samples:
        yield ended
    yield from _histograms(counters)


def _tiers(counters: Mapping[str, int]) -> Iterable[Metric]:
    for family, (what, names) in _TIERS.items():
        gauge = GaugeMetricFamily(family, what, labels=["tier"])
        for tier, name in names.items():
            if name in counters:
                gauge.add_metric([tier], counters[name])
        if gauge.samples:
            yield gauge


def _histograms(counters: Mapping[str, int]) -> Iterable[Metric]:
    bounds = dict[str, list[int]]()
    for name in counters:
        found = _BOUND.fullmatch(name)
        if found is not None:
            bounds.setdefault(found["name"], []).append(int(found["bound"]))
    for families, scale in ((_SECONDS, 1e6), (_LENGTHS, 1)):
        for name, (family, what) in families.items():
            if name in bounds and f"{name}_count" in counters:
                buckets = [
                    (str(bound / scale), counters[f"{name}_le_{bound}"])
                    for bound in sorted(bounds[name])
                ]
                buckets.append(("+Inf", counters[f"{name}_count"]))
                total = counters.get(f"{name}_sum", 0) / scale
                yield HistogramMetricFamily(family, what, buckets=buckets, sum_value=total)


def _for_routers(counters: Mapping[str, int], model: str) -> Iterable[Metric]:
    """The names by which routers of requests know a load; they are vLLM's."""
    if not {"n_queued", "n_running", "n_slots", "n_free_slots"} <= counters.keys():
        return
    n_slots = counters["n_slots"]
    usage = (n_slots - counters["n_free_slots"]) / n_slots if n_slots else 0.0
    if n_pages := counters.get("n_pages", 0):
        usage = max(usage, 1 - counters.get("n_free_pages", 0) / n_pages)
    for name, what, value in (
        ("vllm:num_requests_waiting", "wkvm_requests_waiting.", counters["n_queued"]),
        ("vllm:num_requests_running", "wkvm_requests_running.", counters["n_running"]),
        ("vllm:kv_cache_usage_perc", "Slots or pages in use over all, from 0 to 1.", usage),
    ):
        family = GaugeMetricFamily(name, what, labels=["model_name"])
        family.add_metric([model], value)
        yield family


def _gauge(name: str, what: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, what, value=value)
