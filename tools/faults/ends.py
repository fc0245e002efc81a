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
    Fault(
        "time in which the whole process stood still counts",
        "wkvm/server/watchdog.py",
        "        seen = min(now - self._looked_at, 2 * PERIOD_S)\n",
        "        seen = now - self._looked_at\n",
        (
            "tests/server/test_watchdog.py::test_time_in_which_the_whole_process_stood_still_does_not_end_it",
        ),
    ),
    Fault(
        "a loop that stands still is told to nobody",
        "wkvm/server/watchdog.py",
        '        self._tell("loop", self._loop_stood_s)\n',
        "",
        ("tests/server/test_watchdog.py::test_a_loop_that_stands_still_is_told_after_its_limit",),
    ),
    Fault(
        "a loop that stands still is waited for",
        "wkvm/server/guard.py",
        "            self._leave(EXIT_STALLED)\n",
        "            pass\n",
        ("tests/server/test_guard.py::test_a_loop_that_stands_still_ends_the_process_at_once",),
    ),
    Fault(
        "the end waits for the disk of reports",
        "wkvm/server/guard.py",
        "        self.end_within(END_TIMEOUT_S, EXIT_ENGINE_FAILED)\n"
        '        self._report("engine_failed", EXIT_ENGINE_FAILED, error)\n',
        '        self._report("engine_failed", EXIT_ENGINE_FAILED, error)\n'
        "        self.end_within(END_TIMEOUT_S, EXIT_ENGINE_FAILED)\n",
        (
            "tests/server/test_guard.py::test_a_disk_for_reports_that_does_not_answer_holds_no_end_up",
        ),
    ),
    Fault(
        "crash reports have no number",
        "wkvm/server/crashes.py",
        "found[: max(0, len(found) - (MAX_REPORTS - 1))]",
        "found[:0]",
        (
            "tests/server/test_crashes.py::test_the_newest_reports_are_kept_and_nothing_else_is_touched",
        ),
    ),
    Fault(
        "a link in the place of a crash report is followed",
        "wkvm/server/crashes.py",
        "os.O_WRONLY | os.O_CREAT | os.O_EXCL",
        "os.O_WRONLY | os.O_CREAT",
        ("tests/server/test_crashes.py::test_a_link_in_the_place_of_a_report_is_not_followed",),
    ),
    Fault(
        "a crash report has what an exception says",
        "wkvm/server/crashes.py",
        "        if isinstance(one, RuntimeError) and _DEVICE.match(str(one)):\n",
        "        if isinstance(one, Exception):\n",
        (
            "tests/server/test_crashes.py::test_a_report_names_types_and_places_and_says_what_a_device_said_and_nothing_else",
        ),
    ),
    Fault(
        "a part of a crash report is left on a full disk",
        "wkvm/server/crashes.py",
        "                        path.unlink(missing_ok=True)\n",
        "",
        (
            "tests/server/test_crashes.py::test_a_report_for_which_the_disk_has_no_room_leaves_no_part_of_it",
        ),
    ),
)
