"""Faults in what comes in and goes out: frames, bodies, deadlines, buffers, ends."""

from tools.faults.fault import Fault

CONNECTION = "wkvm/server/connection.py"
CLOCKS = "wkvm/server/clocks.py"
HTTP = "wkvm/gateway/door/connection.py"

DOORS = (
    Fault(
        "a frame is waited for before its length is looked at",
        "protocol/wkvm_protocol/framing.py",
        "        if not 0 < n_bytes <= self.limit:\n            raise self._fail(n_bytes)\n",
        "        if len(buffer) >= body + n_bytes and not 0 < n_bytes <= self.limit:\n"
        "            raise self._fail(n_bytes)\n",
        ("tests/protocol/test_framing.py::test_a_bad_length_is_refused_before_its_payload_comes",),
    ),
    Fault(
        "a frame may be one byte longer than it may",
        "protocol/wkvm_protocol/framing.py",
        "        if not 0 < n_bytes <= self.limit:\n            raise self._fail(n_bytes)\n",
        "        if not 0 < n_bytes <= self.limit + 1:\n            raise self._fail(n_bytes)\n",
        ("tests/protocol/test_framing.py::test_a_bad_length_is_refused_before_its_payload_comes",),
    ),
    Fault(
        "output that nobody reads has no limit",
        CONNECTION,
        "            high=self._config.max_output_bytes // 4,\n",
        "            high=2**31 - 1,\n",
        (
            "tests/server/test_deadlines.py::test_30_stalled_readers_cost_bounded_memory_and_are_cut_off",
        ),
    ),
    Fault(
        "full output stops nothing",
        CONNECTION,
        "            self._shared.dispatcher.hold(self)\n",
        "            pass\n",
        (
            "tests/server/test_connection.py::test_full_output_stops_requests_reading_and_messages_until_it_is_read",
        ),
    ),
    Fault(
        "a Hello has no deadline",
        CLOCKS,
        "        self._arm(self._hello_due)\n",
        "",
        ("tests/server/test_clocks.py::test_a_client_has_so_long_to_say_hello_and_no_longer",),
    ),
    Fault(
        "a frame that has begun has no deadline",
        CLOCKS,
        "            self._arm(self._frame_due)\n",
        "",
        (
            "tests/server/test_clocks.py::test_a_frame_that_begins_when_nothing_else_is_due_has_a_deadline",
        ),
    ),
    Fault(
        "each byte of a frame gives it more time",
        CLOCKS,
        "        if self._frame_due == math.inf:\n            self._frame_due",
        "        if True:\n            self._frame_due",
        ("tests/server/test_clocks.py::test_a_frame_that_drips_is_not_given_more_time",),
    ),
    Fault(
        "a reader that stalls has no deadline",
        CLOCKS,
        "        self._arm(self._reader_due)\n",
        "",
        (
            "tests/server/test_clocks.py::test_a_peer_that_stops_reading_when_nothing_else_is_due_is_cut_off",
        ),
    ),
    Fault(
        "requests of a connection that is lost go on",
        CONNECTION,
        "        self._wire.close()\n        self._let_go()\n        self._clocks.stop()\n",
        "        self._wire.close()\n        self._clocks.stop()\n",
        ("tests/server/test_lanes.py::test_a_connection_that_is_lost_frees_what_it_held",),
    ),
    Fault(
        "a client of HTTP that leaves cancels nothing",
        "wkvm/gateway/door/listening.py",
        "app, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S",
        "app, handler_cancellation=False, shutdown_timeout=CLOSE_TIMEOUT_S",
        (
            "tests/gateway/test_door_deadlines.py::test_a_client_that_leaves_cancels_a_handler_that_writes_nothing",
        ),
    ),
    Fault(
        "headers of a request have no deadline",
        HTTP,
        "        super().connection_made(transport)\n        self._expect_headers()\n",
        "        super().connection_made(transport)\n",
        ("tests/gateway/test_door_deadlines.py::test_a_connection_that_says_nothing_is_closed",),
    ),
    Fault(
        "a client of HTTP that does not read is kept",
        HTTP,
        "        if n_read < MIN_READ_RATE * self._config.write_timeout_s:\n",
        "        if n_read < 0:\n",
        (
            "tests/gateway/test_door_deadlines.py::test_an_answer_that_is_not_read_loses_its_connection",
        ),
    ),
    Fault(
        "connections of HTTP have no limit",
        "wkvm/gateway/door/listening.py",
        "is_full = self.n_connections >= self._gateway.config.max_connections",
        "is_full = self.n_connections > 10 * self._gateway.config.max_connections",
        (
            "tests/gateway/test_door.py::test_one_connection_too_many_is_refused_and_the_others_go_on",
        ),
    ),
    Fault(
        "what is nested too deeply is read",
        "wkvm/gateway/nesting.py",
        "    _check(written)\n",
        "    pass\n",
        ("tests/gateway/test_nesting.py::test_one_level_more_is_refused",),
    ),
    Fault(
        "one level more of nesting is read",
        "wkvm/gateway/nesting.py",
        "default=0) > MAX_NESTING",
        "default=0) > MAX_NESTING + 1",
        ("tests/gateway/test_nesting.py::test_one_level_more_is_refused",),
    ),
    Fault(
        "an id that is one beyond the vocabulary is taken",
        "wkvm/core/sampling.py",
        "and max(token_ids) < vocab_size\n",
        "and max(token_ids) <= vocab_size\n",
        ("tests/core/test_sampling_params.py::test_ids_out_of_the_vocabulary_are_named",),
    ),
    Fault(
        "true is taken for an id",
        "wkvm/core/sampling.py",
        "set(map(type, token_ids)) == {int} and",
        "set(map(type, token_ids)) <= {int, bool} and",
        ("tests/core/test_sampling_params.py::test_ids_that_are_no_integers_are_refused",),
    ),
    Fault(
        "NaN is taken for a number",
        "wkvm/core/sampling.py",
        "if type(value) not in (int, float) or value != value or value in (math.inf, -math.inf):",
        "if type(value) not in (int, float) or value in (math.inf, -math.inf):",
        ("tests/core/test_sampling_params.py::test_what_is_no_finite_number_is_refused",),
    ),
    Fault(
        "the queue has no limit",
        "wkvm/core/checks.py",
        "    if n_waiting > config.max_queue:\n",
        "    if n_waiting < 0:\n",
        (
            "tests/core/test_scheduler_submit.py::test_a_tenant_that_fills_its_queue_leaves_room_to_others",
        ),
    ),
    Fault(
        "the ids that wait have no limit",
        "wkvm/core/checks.py",
        "> config.max_queued_tokens:\n",
        "> 2**62:\n",
        ("tests/core/test_scheduler_submit.py::test_the_prompt_ids_that_wait_have_a_bound",),
    ),
    Fault(
        "a body that is an expression is evaluated",
        "wkvm/gateway/nesting.py",
        "    _check(written)\n",
        "    with __import__('contextlib').suppress(Exception):\n        eval(written)\n"
        "    _check(written)\n",
        ("tests/supply/test_audit.py::test_what_comes_over_http_is_not_run",),
    ),
    Fault(
        "a frame that is a pickle is unpickled",
        "protocol/wkvm_protocol/codec.py",
        "            message = self._decoder.decode(payload)\n",
        "            with __import__('contextlib').suppress(Exception):\n"
        "                __import__('pickle').loads(payload)\n"
        "            message = self._decoder.decode(payload)\n",
        ("tests/supply/test_audit.py::test_what_comes_over_the_binary_protocol_is_not_run",),
    ),
    Fault(
        "a file in a state's place is unpickled",
        "wkvm/state/payloads.py",
        "        prefix = bytearray(8)\n",
        "        prefix = bytearray(8)\n"
        "        with __import__('contextlib').suppress(Exception):\n"
        "            __import__('pickle').loads(open(f'/proc/self/fd/{fd}', 'rb').read())\n",
        ("tests/supply/test_audit.py::test_what_is_in_the_place_of_a_state_is_not_run",),
    ),
    Fault(
        "a module imports pickle",
        "wkvm/state/payloads.py",
        "import errno\n",
        "import errno\nimport pickle\n",
        ("tests/supply/test_nothing_is_run.py::test_no_module_runs_what_it_reads",),
    ),
    Fault(
        "objects and arrays side by side have no limit",
        "wkvm/gateway/nesting.py",
        "        if n > MAX_CONTAINERS:\n",
        "        if n < 0:\n",
        ("tests/gateway/test_nesting.py::test_the_objects_and_arrays_of_a_text_are_counted",),
    ),
    Fault(
        "a body that stops has no deadline",
        "wkvm/gateway/calls.py",
        "            async with asyncio.timeout(config.body_timeout_s):\n",
        "            async with asyncio.timeout(None):\n",
        (
            "tests/gateway/test_door_deadlines.py::test_a_body_that_stops_is_answered_by_408_and_the_end",
        ),
    ),
    Fault(
        "another parser of HTTP will do",
        "wkvm/gateway/door/listening.py",
        "    if http_parser.HttpRequestParser is http_parser.HttpRequestParserPy:\n",
        "    if False:\n",
        ("tests/gateway/test_door.py::test_without_the_c_parser_nothing_starts",),
    ),
    Fault(
        "pages from elsewhere may use the server",
        "wkvm/gateway/door/origins.py",
        "    if origin is None or _is_named(origin, config):\n",
        "    if True or _is_named(origin, config):\n",
        (
            "tests/gateway/test_origins.py::test_without_keys_a_page_from_elsewhere_makes_nothing_run",
        ),
    ),
    Fault(
        "a grammar may take any time",
        "wkvm/engine/grammars.py",
        "        if self._time_left_s < 0:\n",
        "        if False:\n",
        (
            "tests/engine/test_grammar_compiler.py::test_a_grammar_whose_masks_take_too_long_ends_its_own_request_alone",
        ),
    ),
    Fault(
        "a checkpoint of the operator's is unpickled",
        "wkvm/models/weights.py",
        "torch.load(path, weights_only=True, mmap=True",
        "torch.load(path, weights_only=False, mmap=True",
        ("tests/models/test_checkpoints.py::test_a_pickle_is_not_executed",),
    ),
    Fault(
        "a module loads whatever torch can",
        "wkvm/models/weights.py",
        "torch.load(path, weights_only=True, mmap=True",
        "torch.load(path, mmap=True",
        ("tests/supply/test_nothing_is_run.py::test_no_module_runs_what_it_reads",),
    ),
    Fault(
        "each byte of headers gives them more time",
        "wkvm/gateway/door/connection.py",
        "        if self._header_clock is None:\n            self._header_clock =",
        "        self._stop_header_clock()\n"
        "        if self._header_clock is None:\n"
        "            self._header_clock =",
        ("tests/gateway/test_door_deadlines.py::test_headers_that_trickle_in_gain_no_time",),
    ),
    Fault(
        "whoever reads slowly loses the connection",
        "wkvm/gateway/door/connection.py",
        "        if n_read < MIN_READ_RATE * self._config.write_timeout_s:\n",
        "        if True:\n",
        ("tests/gateway/test_door_deadlines.py::test_who_reads_slowly_but_reads_gets_everything",),
    ),
    Fault(
        "what is left of an answer keeps a connection open",
        "wkvm/gateway/door/connection.py",
        "        finally:\n            self._expect_reading()\n",
        "        finally:\n            pass\n",
        (
            "tests/gateway/test_door_deadlines.py::test_what_is_left_of_an_answer_keeps_no_closing_connection_open",
        ),
    ),
    Fault(
        "as many ids wait however much is told of each",
        "wkvm/gateway/streams/choices.py",
        "MAX_WAITING // (1 + n_logprobs) if",
        "MAX_WAITING if",
        (
            "tests/gateway/test_windows.py::test_fewer_ids_wait_the_more_is_told_of_each_and_two_of_each_choice",
        ),
    ),
    Fault(
        "a silent peer is pinged for ever",
        "wkvm/server/clocks.py",
        "        return Overdue.PONG if is_late else Overdue.PING\n",
        "        return Overdue.PING\n",
        (
            "tests/server/test_clocks.py::test_a_silent_peer_is_pinged_and_given_up_after_so_many_misses",
        ),
    ),
    Fault(
        "a peer that does not read holds the end up",
        "wkvm/server/clocks.py",
        "        self._close_due = self._loop.time() + timeout_s\n"
        "        self._arm(self._close_due)\n",
        "        self._close_due = self._loop.time() + timeout_s\n",
        (
            "tests/server/test_clocks.py::test_what_is_left_is_waited_for_no_longer_when_nothing_else_is_due",
        ),
    ),
    Fault(
        "connections take the last files that a process may open",
        "wkvm/gateway/door/listening.py",
        "                if is_full or self._is_full()\n",
        "                if is_full\n",
        ("tests/gateway/test_door.py::test_connections_do_not_take_the_last_files",),
    ),
    Fault(
        "who is one too many is reset before the answer is read",
        "wkvm/gateway/door/connection.py",
        "        if self._wire.can_write_eof():\n            self._wire.write_eof()\n",
        "        self._wire.close()\n",
        (
            "tests/gateway/test_door.py::test_one_connection_too_many_is_told_so_also_if_it_has_sent_a_request",
        ),
    ),
    Fault(
        "a handshake that stops has no deadline",
        "wkvm/gateway/door/listening.py",
        "                    ssl_handshake_timeout=handshake_s,\n",
        "",
        ("tests/gateway/test_door.py::test_a_handshake_that_stops_is_given_up",),
    ),
    Fault(
        "log probabilities wait as objects of Python's",
        "wkvm/gateway/responses/writer.py",
        "        self._held += (msgspec.Raw(msgspec.json.encode(one)) for one in logprobs)\n",
        "        self._held += logprobs\n",
        (
            "tests/gateway/test_responses_items.py::test_log_probabilities_wait_for_the_end_of_a_text_as_json",
        ),
    ),
)
