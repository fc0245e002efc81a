"""Faults in how requests and the server end, and in what is said of that."""

from tools.faults.fault import Fault

ENDS = (
    Fault(
        "a request has no deadline",
        "wkvm/core/scheduler.py",
        "            self._deadlines.set(request.request_id, deadline)\n",
        "",
        (
            "tests/core/test_scheduler_commit.py::test_overdue_requests_end_whether_they_wait_or_run",
        ),
    ),
    Fault(
        "a server that drains takes new requests",
        "wkvm/core/scheduler.py",
        "        if self._draining:\n            raise DrainingError\n",
        "",
        ("tests/core/test_scheduler_submit.py::test_draining_refuses_the_new_and_runs_the_old",),
    ),
    Fault(
        "a drain waits for ever",
        "wkvm/engine/loop.py",
        "            async with asyncio.timeout(grace_s):\n",
        "            async with asyncio.timeout(None):\n",
        ("tests/engine/test_loop.py::test_drain_cancels_what_is_left_after_the_grace",),
    ),
    Fault(
        "a server that ends does not save what is in memory",
        "wkvm/engine/states/service.py",
        "                self._backing.store.flush()\n",
        "                pass\n",
        (
            "tests/engine/states/test_lives.py::test_what_is_in_memory_alone_outlives_a_service_that_is_closed",
        ),
    ),
    Fault(
        "an engine that is stuck is ready",
        "wkvm/gateway/monitoring/health.py",
        '        return "engine_stuck"\n',
        "        return None\n",
        (
            "tests/gateway/test_health.py::test_a_step_that_does_not_end_makes_the_gateway_unready_until_it_does",
        ),
    ),
    Fault(
        "a gateway that drains is ready",
        "wkvm/gateway/monitoring/health.py",
        '    if gateway.is_draining:\n        return "draining"\n',
        "",
        ("tests/gateway/test_health.py::test_a_gateway_that_drains_is_not_ready_but_alive",),
    ),
    Fault(
        "a step that fails is passed over",
        "wkvm/engine/loop.py",
        "            self._engine.fail(step.plan, told, self._clock())\n",
        "            pass\n",
        (
            "tests/engine/test_loop.py::test_a_step_that_raises_ends_its_requests_and_the_loop_goes_on",
        ),
    ),
    Fault(
        "an engine whose bookkeeping is broken goes on as if nothing were",
        "wkvm/engine/loop.py",
        '            logger.exception("the engine is broken and stops")\n            raise\n',
        '            logger.exception("the engine is broken and stops")\n',
        (
            "tests/engine/test_loop.py::test_broken_bookkeeping_ends_every_request_and_comes_out_of_run",
        ),
    ),
    Fault(
        "a step that stands still ends nothing",
        "wkvm/server/watchdog.py",
        "        if 0 < self._step_timeout_s < stood_s and what not in self._told:\n",
        "        if self._step_timeout_s < 0 and what not in self._told:\n",
        (
            "tests/server/test_watchdog.py::test_a_step_that_does_not_end_is_told_and_one_that_does_is_not",
        ),
    ),
    Fault(
        "a supervisor is told that a loop turns that does not",
        "wkvm/server/watchdog.py",
        "        if sent_at is None:\n            if self",
        "        self._notifier.alive()\n        if sent_at is None:\n            if self",
        (
            "tests/server/test_watchdog.py::test_a_supervisor_hears_of_a_loop_that_turns_and_of_no_other",
        ),
    ),
    Fault(
        "the log tells what an exception says",
        "wkvm/server/log.py",
        '    return re.split(r"[\\n:(<%]", str(record.msg), maxsplit=1)[0].strip()\n',
        "    return record.getMessage()\n",
        ("tests/server/test_log.py::test_of_other_peoples_messages_the_first_words_are_told",),
    ),
    Fault(
        "a crash report can be read by everybody",
        "wkvm/server/crashes.py",
        "                    fd = os.open(path, flags, 0o600)\n",
        "                    fd = os.open(path, flags, 0o644)\n",
        (
            "tests/server/test_crashes.py::test_a_report_is_for_its_user_alone_and_its_folder_is_made",
        ),
    ),
    Fault(
        "a device that is lost is a step that failed",
        "wkvm/engine/loop.py",
        "            if isinstance(error, EngineFailedError):\n                raise\n",
        "",
        ("tests/cli/test_engine_fails.py::test_every_open_request_is_told_and_the_status_is_70",),
    ),
)
