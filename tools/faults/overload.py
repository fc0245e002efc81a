"""Faults in what a server does that is asked for more than it can do."""

from tools.faults.fault import Fault

FORESIGHT = "wkvm/core/foresight.py"
PRESSURE = "wkvm/server/pressure.py"

OVERLOAD = (
    Fault(
        "what cannot be over in time any more gets a slot",
        "wkvm/core/admission.py",
        "            if self._foresight.is_too_late(request, now, is_alone=not self._running):\n",
        "            if request.deadline <= now:\n",
        (
            "tests/core/test_foresight.py::test_a_request_whose_time_does_not_suffice_any_more_is_given_up_before_it_costs_anything",
        ),
    ),
    Fault(
        "a server that was too slow once refuses all for ever",
        FORESIGHT,
        "        if is_alone:\n            needed_s = least_s\n",
        "        if is_alone:\n            needed_s = max(needed_s, 2 * timeout_s)\n",
        (
            "tests/core/test_foresight.py::test_a_server_that_became_too_slow_for_everybody_finds_out_when_it_is_faster_again",
        ),
    ),
    Fault(
        "all of other tenants' lines are waited for",
        "wkvm/core/waiting.py",
        "            min(line.n_requests, n_own + 1) for other, line in self._ring.items()",
        "            line.n_requests for other, line in self._ring.items()",
        ("tests/core/test_foresight.py::test_the_line_of_one_tenant_keeps_no_other_waiting",),
    ),
    Fault(
        "a refusal always says a second",
        "wkvm/server/errors.py",
        "RETRY_AFTER_MS if after_s is None else math.ceil(after_s * 1000)",
        "RETRY_AFTER_MS",
        ("tests/server/test_errors.py::test_a_refusal_says_when_to_try_again_if_that_is_known",),
    ),
    Fault(
        "memory that is full is not",
        PRESSURE,
        "rss >= config.max_rss_bytes",
        "rss > config.max_rss_bytes",
        ("tests/states/test_pressure.py::test_out_of_memory_nothing_new_is_taken",),
    ),
    Fault(
        "nothing can be deleted when memory is full",
        PRESSURE,
        "MAKES_ROOM = wire.StateDelete | ",
        "MAKES_ROOM = ",
        ("tests/states/test_pressure.py::test_out_of_memory_nothing_new_is_taken",),
    ),
    Fault(
        "what is in memory alone is lost at a stop",
        "wkvm/engine/states/service.py",
        "                self._backing.store.flush()\n",
        "                pass\n",
        (
            "tests/states/test_stops.py::test_a_server_that_is_told_to_end_keeps_all_that_it_has_acknowledged",
        ),
    ),
)
