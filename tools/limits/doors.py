"""Limits of what comes in."""

from wkvm_protocol.fields import MAX_HELLO_FRAME_BYTES

from tools.limits.limit import Limit
from wkvm.core.grammar import MAX_GRAMMAR_BYTES
from wkvm.core.sampling import MAX_BIASED_IDS, MAX_LOGPROBS, MAX_STOP_IDS
from wkvm.gateway.door.connection import MIN_READ_RATE
from wkvm.gateway.fields import (
    MAX_BAD_WORD_LENGTH,
    MAX_BAD_WORDS,
    MAX_REQUEST_ID_LENGTH,
    MAX_STOP_LENGTH,
    MAX_STOPS,
)
from wkvm.gateway.nesting import MAX_CONTAINERS, MAX_NESTING
from wkvm.gateway.schemas import MAX_DEPTH, MAX_SUBSCHEMAS
from wkvm.gateway.streams.choices import MAX_CHOICES

CONNECTIONS = (
    Limit(
        "of the binary protocol, open at once",
        "--max-connections",
        "`TOO_MANY_CONNECTIONS`",
        "server/test_auth.py::test_a_connection_too_many_is_told_so",
    ),
    Limit(
        "of these, of one tenant",
        "--max-connections-per-tenant",
        "`TOO_MANY_CONNECTIONS`",
        "server/test_auth.py::test_a_tenant_has_a_limit_of_its_own",
    ),
    Limit(
        "of HTTP, open at once",
        "--http-max-connections",
        "503, and the connection ends",
        "gateway/test_door.py::test_one_connection_too_many_is_refused_and_the_others_go_on",
    ),
    Limit(
        "from connecting to HELLO",
        "--auth-timeout-s",
        "`AUTH_TIMEOUT`",
        "server/test_clocks.py::test_a_client_has_so_long_to_say_hello_and_no_longer",
        "s",
    ),
    Limit(
        "from a frame's first byte to its last",
        "--frame-timeout-s",
        "`FRAME_TIMEOUT`",
        "server/test_clocks.py::test_a_frame_that_drips_is_not_given_more_time",
        "s",
    ),
    Limit(
        "from a request's first byte to its headers' end",
        "--header-timeout-s",
        "408",
        "gateway/test_door_deadlines.py::test_headers_that_stop_are_answered_by_408_and_the_end",
        "s",
    ),
    Limit(
        "from there to the end of the body",
        "--body-timeout-s",
        "408",
        "gateway/test_door_deadlines.py::test_a_body_that_stops_is_answered_by_408_and_the_end",
        "s",
    ),
    Limit(
        "silence before a ping",
        "--ping-interval-s",
        "a ping",
        "server/test_clocks.py::test_any_byte_puts_off_the_next_ping",
        "s",
    ),
    Limit(
        "unanswered pings in a row",
        "--max-missed-pings",
        "the connection ends",
        "server/test_clocks.py::test_a_silent_peer_is_pinged_and_given_up_after_so_many_misses",
    ),
    Limit(
        "silence on the binary protocol",
        "--idle-timeout-s",
        "the connection ends",
        "server/test_clocks.py::test_without_pings_silence_has_its_own_limit",
        "s",
    ),
    Limit(
        "idle between HTTP requests",
        "--keepalive-timeout-s",
        "the connection ends",
        "gateway/test_door_deadlines.py::test_a_connection_may_be_idle_between_requests_for_its_time_alone",
        "s",
    ),
    Limit(
        "open requests of one connection",
        "--max-lanes",
        "`TOO_MANY_LANES`",
        "server/test_requests.py::test_a_lane_too_many_is_refused_and_the_others_go_on",
    ),
    Limit(
        "output that waits for one connection",
        "--max-output-bytes",
        "from a quarter on its lanes pause",
        "server/test_deadlines.py::test_30_stalled_readers_cost_bounded_memory_and_are_cut_off",
        "B",
    ),
    Limit(
        "how long that may last",
        "--write-timeout-s",
        "the connection ends, its requests with it",
        "server/test_clocks.py::test_a_peer_that_does_not_read_is_cut_off_without_a_word",
        "s",
    ),
    Limit(
        "a client of HTTP that reads less",
        MIN_READ_RATE,
        "as the next",
        "gateway/test_door_deadlines.py::test_who_reads_slowly_but_reads_gets_everything",
        "B/s",
    ),
    Limit(
        "how long that may last",
        "--http-write-timeout-s",
        "the connection ends, its request with it",
        "gateway/test_door_deadlines.py::test_an_answer_that_is_not_read_loses_its_connection",
        "s",
    ),
)

SENT = (
    Limit(
        "a frame before HELLO is answered",
        MAX_HELLO_FRAME_BYTES,
        "`FRAME_TOO_LARGE`",
        "server/test_frames.py::test_a_length_is_checked_before_anything_is_stored",
        "B",
    ),
    Limit(
        "a frame after it",
        "--max-frame-bytes",
        "`FRAME_TOO_LARGE`",
        "protocol/test_framing.py::test_a_length_up_to_the_limit_passes_both_ways",
        "B",
    ),
    Limit(
        "the body of an HTTP request",
        "--max-body-bytes",
        "413",
        "gateway/test_door.py::test_a_body_has_a_limit",
        "B",
    ),
    Limit(
        "arrays and objects within each other in JSON",
        MAX_NESTING,
        "400",
        "gateway/test_nesting.py::test_one_level_more_is_refused",
    ),
    Limit(
        "arrays and objects in one JSON text",
        MAX_CONTAINERS,
        "400",
        "gateway/test_nesting.py::test_the_objects_and_arrays_of_a_text_are_counted",
    ),
    Limit(
        "likewise in a schema of an answer",
        MAX_DEPTH,
        "400",
        "gateway/test_schema_limits.py::test_a_level_more_is_refused",
    ),
    Limit(
        "schemas within one schema",
        MAX_SUBSCHEMAS,
        "400",
        "gateway/test_schema_limits.py::test_a_schema_more_is_refused",
    ),
    Limit(
        "a grammar",
        MAX_GRAMMAR_BYTES,
        "`INVALID_PARAMETER`, 400",
        "core/test_scheduler_grammar.py::test_a_source_may_have_as_many_bytes_as_the_limit_and_no_more",
        "B",
    ),
    Limit(
        "choices of one request, `n`",
        "--max-n",
        "`INVALID_PARAMETER`, 400",
        "core/test_scheduler_submit.py::test_a_request_has_as_many_choices_as_it_may",
    ),
    Limit(
        "choices of all prompts of an HTTP request",
        MAX_CHOICES,
        "400",
        "gateway/test_completions.py::test_limits_on_what_one_request_may_ask_for",
    ),
    Limit(
        "log probabilities of one token",
        MAX_LOGPROBS,
        "`INVALID_PARAMETER`, 400",
        "core/test_sampling_params.py::test_integers_are_allowed_up_to_their_limits_and_no_further",
    ),
    Limit(
        "stop ids",
        MAX_STOP_IDS,
        "`INVALID_PARAMETER`, 400",
        "core/test_sampling_params.py::test_lists_are_allowed_up_to_their_limits",
    ),
    Limit(
        "stop strings",
        MAX_STOPS,
        "400",
        "gateway/test_completions.py::test_limits_on_what_one_request_may_ask_for",
    ),
    Limit(
        "characters of one of them",
        MAX_STOP_LENGTH,
        "400",
        "gateway/test_completions.py::test_limits_on_what_one_request_may_ask_for",
    ),
    Limit(
        "biased ids",
        MAX_BIASED_IDS,
        "`INVALID_PARAMETER`, 400",
        "core/test_sampling_params.py::test_lists_are_allowed_up_to_their_limits",
    ),
    Limit(
        "`bad_words`",
        MAX_BAD_WORDS,
        "400",
        "gateway/test_bad_words.py::test_as_many_and_as_long_texts_as_may_be_are_taken",
    ),
    Limit(
        "characters of one of them",
        MAX_BAD_WORD_LENGTH,
        "400",
        "gateway/test_bad_words.py::test_what_is_no_list_of_short_texts_is_refused",
    ),
    Limit(
        "characters of an `X-Request-Id`",
        MAX_REQUEST_ID_LENGTH,
        "a fresh one",
        "gateway/test_app.py::test_the_id_of_a_request_has_128_characters_at_most",
    ),
)
