"""Limits of a process: how long it may stand still, and what it leaves when it fails."""

from tools.limits.limit import Limit
from wkvm.gateway.monitoring.health import MAX_STEP_AGE_S
from wkvm.server.crashes import MAX_BYTES, MAX_REPORTS
from wkvm.server.guard import END_TIMEOUT_S

PROCESS = (
    Limit(
        "a step, before the server is not ready",
        MAX_STEP_AGE_S,
        "`/ready` is 503",
        "gateway/test_health.py::test_a_step_may_take_five_seconds",
        "s",
    ),
    Limit(
        "an event loop that does not turn",
        "--max-loop-lag-s",
        "the log has its stack",
        "server/test_watchdog.py::test_a_late_loop_is_logged_once_with_the_stack_of_its_thread",
        "s",
    ),
    Limit(
        "a step, or that loop",
        "--step-timeout-s",
        "the server ends, status 71",
        "server/test_watchdog.py::test_a_loop_that_stands_still_is_told_after_its_limit",
        "s",
    ),
    Limit(
        "the end of a server whose engine failed",
        END_TIMEOUT_S,
        "it ends at once",
        "server/test_guard.py::test_an_end_that_takes_too_long_is_made_short",
        "s",
    ),
    Limit(
        "memory, before nothing new is taken",
        "--max-rss-bytes",
        "`OVERLOADED`, 429",
        "states/test_pressure.py::test_out_of_memory_nothing_new_is_taken",
        "B",
    ),
    Limit(
        "memory, before nothing waits and there are no new states",
        "--shed-rss-bytes",
        "`OVERLOADED`, 429",
        "states/test_pressure.py::test_short_of_memory_there_are_no_new_states",
        "B",
    ),
    Limit(
        "the drain after SIGTERM",
        "--drain-timeout-s",
        "requests are cancelled",
        "server/test_draining.py::test_what_outlasts_the_grace_is_cancelled_and_told_so",
        "s",
    ),
    Limit(
        "reports of engines that failed",
        MAX_REPORTS,
        "the oldest go",
        "server/test_crashes.py::test_the_newest_reports_are_kept_and_nothing_else_is_touched",
    ),
    Limit(
        "one of them",
        MAX_BYTES,
        "its longest parts are left out",
        "server/test_crashes.py::test_a_report_that_is_too_long_leaves_out_its_steps",
        "B",
    ),
)
