"""Faults in who may do what, and how much of it."""

from tools.faults.fault import Fault

EDITS = "wkvm/state/edits.py"

TENANTS = (
    Fault(
        "handles are found whoever asks",
        "wkvm/state/index.py",
        "{ALL} WHERE h.tenant = ? AND h.name = ? AND",
        "{ALL} WHERE coalesce(h.tenant, ?) IS NOT NULL AND h.name = ? AND",
        (
            "tests/states/test_refusals.py::test_another_tenants_state_is_answered_as_one_that_never_was",
        ),
    ),
    Fault(
        "keys are compared by ==",
        "wkvm/server/auth.py",
        "if hmac.compare_digest(digest, known.digest):",
        "if digest == known.digest:",
        (
            "tests/server/test_auth.py::test_a_key_is_compared_with_every_entry_and_in_constant_time",
        ),
    ),
    Fault(
        "the first key that fits ends the comparison",
        "wkvm/server/auth.py",
        "                tenant = known.tenant\n        return tenant",
        "                return known.tenant\n        return tenant",
        (
            "tests/server/test_auth.py::test_a_key_is_compared_with_every_entry_and_in_constant_time",
        ),
    ),
    Fault(
        "a server without keys can be put on the network",
        "wkvm/core/config.py",
        "self.binary_port is not None and not is_loopback(self.host):",
        "self.binary_port is not None and self.host == '0.0.0.0':",
        ("tests/server/test_auth.py::test_without_a_key_only_loopback_can_be_bound",),
    ),
    Fault(
        "a route needs no key",
        "wkvm/gateway/app.py",
        "            if not route.is_open:\n",
        "            if not route.is_open and not route.path.startswith('/v1/models'):\n",
        (
            "tests/gateway/test_health.py::test_without_a_key_every_route_that_is_not_open_is_refused",
        ),
    ),
    Fault(
        "prompts are shared between tenants",
        "wkvm/core/alike.py",
        "return Owner(request.tenant, request.spec.cache_salt)",
        "return Owner('', request.spec.cache_salt)",
        ("tests/core/test_reuse.py::test_what_the_choices_share_is_nobody_elses",),
    ),
    Fault(
        "prompts are shared whatever their salt",
        "wkvm/core/alike.py",
        "return Owner(request.tenant, request.spec.cache_salt)",
        "return Owner(request.tenant, '')",
        ("tests/core/test_reuse.py::test_what_the_choices_share_is_nobody_elses",),
    ),
    Fault(
        "a state's name may be a path",
        "wkvm/core/registry.py",
        'NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)',
        'NAME = re.compile(r"[A-Za-z0-9./_-]{1,128}", re.ASCII)',
        ("tests/core/test_registry.py::test_anything_else_is_refused",),
    ),
    Fault(
        "handles of a tenant are not counted",
        EDITS,
        "        self.add_to(tenant, n_handles=1)\n",
        "",
        ("tests/state/test_store.py::test_what_was_deleted_is_gone_also_after_reopening",),
    ),
    Fault(
        "bytes of a tenant are not counted",
        "wkvm/state/ledger.py",
        "        self.add_to(tenant, n_bytes=content.n_bytes)\n",
        "",
        ("tests/state/test_store.py::test_what_was_deleted_is_gone_also_after_reopening",),
    ),
    Fault(
        "a tenant may have one handle more than it may",
        EDITS,
        '            if self.count_of(tenant, "n_handles") >= limit:\n                raise',
        '            if self.count_of(tenant, "n_handles") > limit:\n                raise',
        (
            "tests/state/test_store.py::test_a_tenant_has_so_many_handles_and_expired_ones_do_not_count",
        ),
    ),
    Fault(
        "versions of a handle have no limit",
        EDITS,
        "        if is_full and not self.limits.drops_old_versions:\n",
        "        if is_full and number_of_versions_is_no_limit():\n",
        ("tests/state/test_store.py::test_a_handle_has_so_many_versions_and_keep_makes_room",),
    ),
    Fault(
        "an operation that is sent again is carried out again",
        "wkvm/state/ledger.py",
        "        found = self.under_key(tenant, key)\n        if found is None:\n",
        "        found = self.under_key(tenant, key)\n        if True:\n",
        ("tests/state/test_store.py::test_a_commit_that_is_retried_with_its_key_is_applied_once",),
    ),
    Fault(
        "a key of one tenant stands for an operation of another",
        "wkvm/state/ledger.py",
        'FROM applied WHERE tenant = ? AND key = ? AND created_at > ?"',
        'FROM applied WHERE ? IS NOT NULL AND key = ? AND created_at > ?"',
        ("tests/state/test_store.py::test_a_key_of_one_tenant_means_nothing_to_another",),
    ),
    Fault(
        "one tenant may take every slot",
        "wkvm/core/admission.py",
        "if lacks_pages or not self._slots.n_free_for(request.tenant):",
        "if lacks_pages:",
        ("tests/core/test_scheduler_plan.py::test_a_tenant_holds_no_more_slots_than_it_may",),
    ),
    Fault(
        "tenants do not take turns",
        "wkvm/core/waiting.py",
        "                self._ring.move_to_end(tenant)\n",
        "",
        ("tests/core/test_waiting.py::test_tenants_take_turns",),
    ),
    Fault(
        "connections of a tenant have no limit",
        "wkvm/server/auth.py",
        "        if self._per_tenant[tenant] >= self.limit_per_tenant:\n            return False\n",
        "",
        ("tests/server/test_auth.py::test_a_tenant_has_a_limit_of_its_own",),
    ),
    Fault(
        "a place for a transfer is never given back",
        "wkvm/server/operations.py",
        "        if operation.is_transfer:\n            self.free_place(operation.tenant)\n",
        "",
        ("tests/server/test_state_operations.py::test_an_error_is_one_answer_with_its_code",),
    ),
    Fault(
        "what a client names becomes a label of a metric",
        "wkvm/gateway/policy.py",
        "ignored[self.route, name if name in NAMED else OTHER] += 1",
        "ignored[self.route, name] += 1",
        (
            "tests/gateway/test_policy.py::test_unknown_fields_are_counted_by_well_known_names_alone",
        ),
    ),
    Fault(
        "templates run outside of the sandbox",
        "wkvm/gateway/text/template.py",
        "environment = jinja2.sandbox.ImmutableSandboxedEnvironment(",
        "environment = jinja2.Environment(",
        ("tests/gateway/test_template.py::test_the_sandbox_holds",),
    ),
    Fault(
        "who could not be over in time is taken",
        "wkvm/core/foresight.py",
        "        if wait_s > _may_wait_s(needed_s, least_s, timeout_s, TAKEN):\n",
        "        if False:\n",
        ("tests/core/test_foresight.py::test_who_would_be_over_too_late_is_refused_at_once",),
    ),
    Fault(
        "a full line does not say when to try again",
        "wkvm/core/foresight.py",
        "        return None if wait_s is None else min(max(wait_s, MIN_RETRY_S), MAX_RETRY_S)\n",
        "        return None\n",
        ("tests/core/test_foresight.py::test_a_full_line_says_when_to_try_again",),
    ),
    Fault(
        "the limit on the wait is not held",
        "wkvm/core/foresight.py",
        "        if most_s is not None and wait_s > most_s:\n",
        "        if most_s is not None and wait_s < 0:\n",
        ("tests/core/test_foresight.py::test_a_limit_on_the_wait_is_held",),
    ),
    Fault(
        "responses are found whoever asks",
        "wkvm/gateway/responses/records.py",
        'FROM responses "\n        "WHERE id = ? AND tenant = ? AND',
        'FROM responses "\n        "WHERE id = ? AND coalesce(tenant, ?) IS NOT NULL AND',
        ("tests/gateway/test_responses.py::test_another_tenant_sees_nothing",),
    ),
    Fault(
        "a request may ask for any number of choices",
        "wkvm/core/checks.py",
        "    if spec.params.n > config.max_n:\n",
        "    if spec.params.n < 0:\n",
        ("tests/core/test_scheduler_submit.py::test_a_request_has_as_many_choices_as_it_may",),
    ),
)
