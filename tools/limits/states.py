"""Limits of what is kept."""

from tools.limits.limit import Limit
from wkvm.core.limits import MAX_KEY_CHARS, StoreLimits
from wkvm.server.operations import (
    LARGE_BYTES,
    LARGE_TRANSFERS_PER_TENANT,
    OPERATIONS_PER_CONNECTION,
    OPERATIONS_PER_TENANT,
    TRANSFERS_PER_TENANT,
)
from wkvm.server.state_bytes import TRANSFER_TIMEOUT_S, WHOLE_TRANSFER_S, WINDOW_BYTES
from wkvm.state.ballast import BALLAST_BYTES
from wkvm.state.exchange import MAX_INLINE_BYTES
from wkvm.state.format import MAX_HEADER_BYTES

STORE = StoreLimits()

STATES = (
    Limit(
        "handles of a tenant",
        "--max-states-per-tenant",
        "`QUOTA`, 507",
        "state/test_store.py::test_a_tenant_has_so_many_handles_and_expired_ones_do_not_count",
    ),
    Limit(
        "their bytes in all tiers",
        "--max-state-bytes-per-tenant",
        "`QUOTA`, 507",
        "state/test_store.py::test_a_tenant_has_so_many_bytes_and_forks_cost_none",
        "B",
    ),
    Limit(
        "of these, in host memory alone",
        "--max-state-host-bytes-per-tenant",
        "`QUOTA`, 507",
        "state/test_store_limits.py::test_a_tenant_has_so_many_bytes_in_host_memory_alone",
        "B",
    ),
    Limit(
        "states that a tenant forks in a second",
        "--max-forks-per-s",
        "`RATE_LIMITED`, 429",
        "states/test_overload.py::test_a_tenant_forks_as_many_states_in_a_second_as_it_may",
    ),
    Limit(
        "versions of a handle",
        "--max-versions-per-state",
        "`QUOTA`, 507",
        "state/test_store.py::test_a_handle_has_so_many_versions_and_keep_makes_room",
    ),
    Limit(
        "forks at once",
        STORE.forks_at_once,
        "`INVALID_PARAMETER`, 400",
        "state/test_store_limits.py::test_one_fork_more_is_refused_and_none_is_made",
    ),
    Limit(
        "tags of a handle",
        STORE.tags_per_handle,
        "`INVALID_PARAMETER`, 400",
        "state/test_store_limits.py::test_one_tag_more_is_refused",
    ),
    Limit(
        "characters of a tag's key or value",
        STORE.tag_chars,
        "`INVALID_PARAMETER`, 400",
        "state/test_store_limits.py::test_a_character_more_of_a_tag_is_refused",
    ),
    Limit(
        "characters of an idempotency key",
        MAX_KEY_CHARS,
        "`INVALID_PARAMETER`, 400",
        "state/test_store_limits.py::test_no_key_and_one_that_is_too_long_are_refused",
    ),
    Limit(
        "how long such a key is remembered",
        STORE.idempotency_s,
        "it is new again",
        "state/test_store.py::test_a_key_is_forgotten_in_the_end",
        "s",
    ),
    Limit(
        "one record of a provenance",
        STORE.provenance_bytes,
        "`INVALID_PARAMETER`, 400",
        "core/test_limits.py::test_a_provenance_that_is_not_json_or_too_long_is_refused",
        "B",
    ),
    Limit(
        "states in host memory",
        "--state-host-bytes",
        "the oldest leave for the disk",
        "state/test_store.py::test_full_memory_writes_the_coldest_to_disk_and_keeps_its_bound",
        "B",
    ),
    Limit(
        "how long one is there unused",
        "--state-idle-s",
        "it leaves for the disk",
        "engine/states/test_lives.py::test_what_is_asked_for_in_memory_is_visible_and_persisted_when_idle",
        "s",
    ),
    Limit(
        "the disk's share that stays free",
        "--state-disk-reserve",
        "`STORE_FULL`, 507",
        "state/test_store_full.py::test_the_reserve_is_left_for_the_catalogue",
        "share",
    ),
    Limit(
        "the disk's share below which there are no new states",
        "--shed-disk",
        "`STORE_FULL`, 507",
        "states/test_pressure.py::test_on_a_disk_that_is_short_there_are_no_new_states",
        "share",
    ),
    Limit(
        "given up to delete on a full disk",
        BALLAST_BYTES,
        "deletions wait for room",
        "state/test_store_full.py::test_deleting_works_when_not_a_byte_is_left",
        "B",
    ),
    Limit(
        "the header of a state's file",
        MAX_HEADER_BYTES,
        "`BAD_STATE_FILE`, 422",
        "state/test_exchange.py::test_a_header_that_is_too_long_is_refused_by_its_first_eight_bytes",
        "B",
    ),
    Limit(
        "a state's file over HTTP",
        "--max-state-bytes",
        "413",
        "gateway/test_state_files.py::test_a_file_needs_a_length_and_has_a_limit",
        "B",
    ),
    Limit(
        "a state's file within a request",
        MAX_INLINE_BYTES,
        "`BAD_STATE_FILE`, 422",
        "server/test_state_bytes.py::test_an_inline_state_longer_than_any_is_refused_before_a_byte_is_granted",
        "B",
    ),
    Limit(
        "operations of one connection",
        OPERATIONS_PER_CONNECTION,
        "`QUEUE_FULL`, 429",
        "server/test_state_operations.py::test_as_many_operations_as_may_be_of_a_connection",
    ),
    Limit(
        "operations of one tenant",
        OPERATIONS_PER_TENANT,
        "`QUEUE_FULL`, 429",
        "server/test_state_operations.py::test_as_many_operations_as_may_be_of_a_tenant",
    ),
    Limit(
        "transfers of one tenant",
        TRANSFERS_PER_TENANT,
        "`QUEUE_FULL`, 429",
        "server/test_state_bytes.py::test_as_many_transfers_as_may_be_of_a_tenant",
    ),
    Limit(
        f"of these, of files above {LARGE_BYTES >> 20} MiB",
        LARGE_TRANSFERS_PER_TENANT,
        "`QUEUE_FULL`, 429",
        "server/test_state_bytes.py::test_large_states_have_fewer_places_and_give_them_back",
    ),
    Limit(
        "bytes granted ahead of their use",
        WINDOW_BYTES,
        "never granted",
        "server/test_state_bytes.py::test_no_more_is_granted_than_a_window_ahead_of_what_was_used",
        "B",
    ),
    Limit(
        "silence in a transfer",
        TRANSFER_TIMEOUT_S,
        "it ends, typed",
        "server/test_state_bytes.py::test_silence_ends_an_upload_and_keeps_nothing",
        "s",
    ),
    Limit(
        "a transfer, and 1 s for each MiB",
        WHOLE_TRANSFER_S,
        "it ends, typed",
        "server/test_state_bytes.py::test_a_trickle_of_bytes_or_of_credit_ends",
        "s",
    ),
    Limit(
        "responses of a tenant",
        "--max-responses",
        "the oldest go",
        "gateway/test_responses_kept.py::test_the_oldest_make_room",
    ),
    Limit(
        "bytes of these, states aside",
        "--max-responses-bytes",
        "the oldest go",
        "gateway/test_responses_kept.py::test_bytes_have_a_limit_and_the_oldest_make_room_for_them",
        "B",
    ),
    Limit(
        "how long they are kept",
        "--response-ttl-s",
        "deleted",
        "gateway/test_responses_kept.py::test_an_old_response_is_as_if_it_were_deleted",
        "s",
    ),
)
