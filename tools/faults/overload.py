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
    Fault(
        "what waits of all tenants has no limit",
        "wkvm/core/checks.py",
        "        and n_waiting > most // waiting.n_tenants_with(tenant)\n",
        "        and n_waiting < 0\n",
        (
            "tests/core/test_scheduler_submit.py::test_all_tenants_together_have_a_limit_that_keeps_out_who_has_its_share",
        ),
    ),
    Fault(
        "one tenant's requests keep another out",
        "wkvm/core/checks.py",
        "        and n_waiting > most // waiting.n_tenants_with(tenant)\n",
        "",
        (
            "tests/core/test_scheduler_submit.py::test_all_tenants_together_have_a_limit_that_keeps_out_who_has_its_share",
        ),
    ),
    Fault(
        "requests that would wait are taken when memory is short",
        "wkvm/server/pressure.py",
        '            if isinstance(message, REQUESTS) and not stats().get("n_free_slots", 1):\n',
        "            if False:\n",
        (
            "tests/states/test_pressure.py::test_short_of_memory_no_request_is_taken_that_would_wait",
        ),
    ),
    Fault(
        "new states are taken when memory is short",
        "wkvm/server/pressure.py",
        "            if is_new:\n",
        "            if False:\n",
        ("tests/states/test_pressure.py::test_short_of_memory_there_are_no_new_states",),
    ),
    Fault(
        "new states are taken when the disk is short",
        "wkvm/server/pressure.py",
        "        if is_new and self._is_disk_short:\n",
        "        if False:\n",
        ("tests/states/test_pressure.py::test_on_a_disk_that_is_short_there_are_no_new_states",),
    ),
    Fault(
        "what would be in time is refused where many wait",
        "wkvm/core/foresight.py",
        "        if wait_s > _may_wait_s(needed_s, least_s, timeout_s, TAKEN):\n",
        "        if wait_s > 0:\n",
        (
            "tests/core/test_foresight.py::test_who_would_be_over_in_time_is_taken_although_many_wait",
        ),
    ),
    Fault(
        "the bodies of open requests have no limit together",
        "wkvm/gateway/door/held.py",
        "        if self._n_bytes[tenant] + n_bytes > self._limit:\n",
        "        if n_bytes > self._limit:\n",
        (
            "tests/gateway/test_app.py::test_the_bodies_of_a_tenants_open_requests_have_a_limit_together",
        ),
    ),
    Fault(
        "a tenant forks as often as it likes",
        "wkvm/engine/states/making.py",
        "        backing.forks.take(tenant, len(names), backing.clock())\n",
        "",
        (
            "tests/states/test_overload.py::test_a_tenant_forks_as_many_states_in_a_second_as_it_may",
        ),
    ),
    Fault(
        "lanes of a connection have no limit",
        "protocol/wkvm_protocol/server.py",
        "        if len(self._lanes) > self._max_lanes:\n",
        "        if False:\n",
        ("tests/server/test_requests.py::test_a_lane_too_many_is_refused_and_the_others_go_on",),
    ),
    Fault(
        "a request without credit keeps its slot for ever",
        "wkvm/core/lives.py",
        "        return min(request.deadline, "
        "request.paused_since + self._config.stall_timeout_s)\n",
        "        return request.deadline\n",
        (
            "tests/core/test_scheduler_commit.py::test_a_request_without_credit_keeps_its_slot_for_so_long",
        ),
    ),
)
