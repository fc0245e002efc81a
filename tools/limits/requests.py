"""Limits of what runs."""

from tools.limits.limit import Limit

REQUESTS = (
    Limit(
        "states that are live at once",
        "--slots",
        "requests wait",
        "core/test_scheduler_plan.py::test_a_request_waits_iff_no_slot_is_free",
    ),
    Limit(
        "of these, of one tenant",
        "--max-slots-per-tenant",
        "its requests wait",
        "core/test_scheduler_plan.py::test_a_tenant_holds_no_more_slots_than_it_may",
    ),
    Limit(
        "tokens that attention layers keep",
        "--guest-tokens",
        "requests wait",
        "core/test_guests.py::test_a_request_waits_for_pages_though_slots_are_free",
    ),
    Limit(
        "tokens of a step",
        "--max-num-batched-tokens",
        "prompts wait",
        "core/test_scheduler_budget.py::test_the_budget_of_a_step_stays_the_cap_of_both",
    ),
    Limit(
        "of these, of prompts, while others decode",
        "--decode-prompt-tokens",
        "they wait",
        "core/test_scheduler_budget.py::test_beside_rows_that_decode_prompts_share_the_smaller_budget",
    ),
    Limit(
        "requests of a tenant that wait",
        "--max-queue",
        "`QUEUE_FULL`, 429",
        "core/test_scheduler_submit.py::test_free_slots_and_the_queue_hold_choices_together",
    ),
    Limit(
        "how long one would wait, by what was measured",
        "--max-queue-s",
        "`OVERLOADED`, 429",
        "core/test_foresight.py::test_a_limit_on_the_wait_is_held",
        "s",
    ),
    Limit(
        "tokens of these together",
        "--max-queued-tokens",
        "`QUEUE_FULL`, 429",
        "core/test_scheduler_submit.py::test_the_prompt_ids_that_wait_have_a_bound",
    ),
    Limit(
        "requests of all tenants that wait",
        "--max-queue-of-all",
        "`QUEUE_FULL`, 429, to who has an equal share",
        "core/test_scheduler_submit.py::"
        "test_all_tenants_together_have_a_limit_that_keeps_out_who_has_its_share",
    ),
    Limit(
        "prompt and `max_tokens` together",
        "--max-model-len",
        "`PROMPT_TOO_LONG`, 400",
        "core/test_scheduler_submit.py::test_prompt_and_max_tokens_together_may_reach_the_limit",
    ),
    Limit(
        "from arrival to the end",
        "--request-timeout-s",
        "`TIMED_OUT`, 408",
        "core/test_scheduler_commit.py::test_overdue_requests_end_whether_they_wait_or_run",
        "s",
    ),
    Limit(
        "without credit on a slot",
        "--stall-timeout-s",
        "`STALLED`",
        "core/test_scheduler_commit.py::test_a_request_without_credit_keeps_its_slot_for_so_long",
        "s",
    ),
    Limit(
        "requests put to host memory",
        "--max-hibernated",
        "they keep their slots",
        "core/test_scheduler_states.py::test_no_more_requests_hibernate_than_may",
    ),
    Limit(
        "finished requests that are remembered",
        "--max-completed-requests",
        "forgotten",
        "core/test_scheduler_commit.py::test_finished_requests_are_remembered_up_to_the_limit",
    ),
    Limit(
        "states on the way through prompts",
        "--prefix-cache-bytes",
        "the oldest go",
        "engine/test_prefixes.py::test_the_budget_of_the_host_is_kept",
        "B",
    ),
    Limit(
        "of these, on the device",
        "--prefix-cache-device-bytes",
        "the oldest go",
        "core/test_reuse.py::test_what_was_used_longest_ago_goes_first",
        "B",
    ),
    Limit(
        "HTTP requests of one key in a minute",
        "--limit-requests",
        "429",
        "gateway/test_limits.py::test_as_many_requests_as_a_minute_has_are_let_in_and_no_more",
    ),
    Limit(
        "tokens of one key in a minute",
        "--limit-tokens",
        "429",
        "gateway/test_limits.py::test_tokens_that_are_owed_are_waited_for",
    ),
    Limit(
        "open HTTP requests of one key",
        "--limit-concurrent",
        "429",
        "gateway/test_limits.py::test_no_more_requests_are_open_at_once_than_may_be",
    ),
    Limit(
        "submitted requests of a tenant",
        "--max-submitted",
        "429",
        "gateway/test_submitted.py::test_as_many_run_as_are_kept_and_one_more_is_refused",
    ),
    Limit(
        "bytes of finished ones",
        "--max-submitted-bytes",
        "the oldest go",
        "gateway/test_submitted.py::test_results_beyond_the_bytes_make_room_but_for_the_last",
        "B",
    ),
    Limit(
        "how long these are kept",
        "--submitted-ttl-s",
        "forgotten",
        "gateway/test_submitted.py::test_a_result_is_forgotten_after_its_time",
        "s",
    ),
)
