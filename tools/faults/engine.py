"""Faults in what runs: slots, rows, turns and what a state carries."""

from tools.faults.fault import Fault

RUNNER = "wkvm/engine/runner.py"
REQUESTS = "wkvm/engine/states/requests.py"
ORIGINS = "wkvm/engine/states/origins.py"

ENGINE = (
    Fault(
        "a slot is not zeroed for a request that begins at nothing",
        RUNNER,
        "            self._arena.zero(blank)\n",
        "            pass\n",
        (
            "tests/engine/test_hash_exactness.py::test_no_order_of_arrivals_budgets_slots_and_cancellations_changes_an_id",
        ),
    ),
    Fault(
        "a state is not put into the slot of the request that goes on from it",
        RUNNER,
        "            self._arena.fill(image[: self._arena.layout.record_bytes], slots)\n",
        "            self._arena.zero(slots)\n",
        ("tests/states/test_traps.py::test_regenerating_with_nothing_new_is_exact_every_time",),
    ),
    Fault(
        "what is saved shares the memory of the slot",
        "wkvm/state/arena.py",
        'return record.to("cpu", copy=True)',
        'return record.to("cpu")',
        (
            "tests/engine/test_states.py::test_what_is_saved_does_not_change_when_its_slot_goes_to_others",
        ),
    ),
    Fault(
        "the pending id is forgotten",
        ORIGINS,
        "return Origin(image, record, image.carried.pending)",
        "return Origin(image, record, ())",
        ("tests/states/test_traps.py::test_regenerating_with_nothing_new_is_exact_every_time",),
    ),
    Fault(
        "the sampler's memory does not travel",
        ORIGINS,
        "        memory=image.carried.sampler,\n        log=",
        "        memory=None,\n        log=",
        (
            "tests/states/test_continuations.py::test_sampled_turns_with_a_kill_between_them_are_the_uninterrupted_run",
        ),
    ),
    Fault(
        "random positions are counted from the start of the request",
        "wkvm/engine/sampler.py",
        "self._rules[row.slot].n_start + row.position + len(row.ids)",
        "row.position + len(row.ids)",
        (
            "tests/states/test_continuations.py::test_sampled_turns_with_a_kill_between_them_are_the_uninterrupted_run",
        ),
    ),
    Fault(
        "forks draw the same random numbers",
        "wkvm/engine/states/making.py",
        "keys = None if keeps_key else [_fresh_key() for _ in names]",
        "keys = None",
        (
            "tests/engine/states/test_over_engine.py::test_forks_draw_numbers_of_their_own_unless_they_replay",
        ),
    ),
    Fault(
        "who comes back is told all at once",
        "wkvm/engine/states/pacing.py",
        "n = max(min(n_all, self.limit), self.n_told)",
        "n = n_all",
        (
            "tests/engine/states/test_returns.py::test_what_was_missed_of_a_turn_that_is_over_comes_as_it_is_granted",
        ),
    ),
    Fault(
        "a request whose client is gone goes on",
        REQUESTS,
        "            self.cancel(request_id)\n            return\n        turn.is_detached = True",
        "            return\n        turn.is_detached = True",
        (
            "tests/engine/states/test_lives.py::test_a_turn_of_a_lost_client_is_cancelled_by_default",
        ),
    ),
    Fault(
        "a row of NaN goes on",
        RUNNER,
        "            not_finite=broken,\n",
        "            not_finite=frozenset(),\n",
        ("tests/states/test_traps.py::test_a_row_of_nan_ends_alone_and_nothing_of_it_is_kept",),
    ),
    Fault(
        "cached_tokens counts the pending id",
        "wkvm/engine/states/turns.py",
        "return 0 if self.origin is None else self.origin.image.carried.n_computed",
        "return 0 if self.origin is None else self.origin.image.carried.n_computed + 1",
        ("tests/states/test_traps.py::test_cached_tokens_are_those_that_were_not_computed",),
    ),
    Fault(
        "choices of one request draw the same random numbers",
        "wkvm/core/prompts.py",
        "        branch=request.branch,\n",
        "        branch=0,\n",
        (
            "tests/core/test_scheduler_submit.py::test_choices_are_requests_of_their_own_with_branches_in_order",
        ),
    ),
    Fault(
        "the slot of a request that ended is not free",
        "wkvm/core/lives.py",
        "            self._slots.free(request.slot, request.tenant)\n",
        "            pass\n",
        ("tests/core/test_scheduler_commit.py::test_a_failed_step_ends_its_rows_and_no_others",),
    ),
)
