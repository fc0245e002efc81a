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
        ("tests/protocol/test_framing.py",),
    ),
    Fault(
        "a frame may be one byte longer than it may",
        "protocol/wkvm_protocol/framing.py",
        "        if not 0 < n_bytes <= self.limit:\n            raise self._fail(n_bytes)\n",
        "        if not 0 < n_bytes <= self.limit + 1:\n            raise self._fail(n_bytes)\n",
        ("tests/protocol/test_framing.py",),
    ),
    Fault(
        "output that nobody reads has no limit",
        CONNECTION,
        "set_write_buffer_limits(high=self._config.max_output_bytes // 4)",
        "set_write_buffer_limits(high=2**31 - 1)",
        ("tests/server/test_deadlines.py", "tests/server/test_connection.py"),
    ),
    Fault(
        "full output stops nothing",
        CONNECTION,
        "            self._shared.dispatcher.hold(self)\n",
        "            pass\n",
        ("tests/server/test_connection.py",),
    ),
    Fault(
        "a Hello has no deadline",
        CLOCKS,
        "        self._arm(self._hello_due)\n",
        "",
        ("tests/server/test_clocks.py",),
    ),
    Fault(
        "a frame that has begun has no deadline",
        CLOCKS,
        "            self._arm(self._frame_due)\n",
        "",
        ("tests/server/test_clocks.py",),
    ),
    Fault(
        "each byte of a frame gives it more time",
        CLOCKS,
        "        if self._frame_due == math.inf:\n            self._frame_due",
        "        if True:\n            self._frame_due",
        ("tests/server/test_clocks.py",),
    ),
    Fault(
        "a reader that stalls has no deadline",
        CLOCKS,
        "        self._arm(self._reader_due)\n",
        "",
        ("tests/server/test_clocks.py",),
    ),
    Fault(
        "requests of a connection that is lost go on",
        CONNECTION,
        "        self._wire.close()\n        self._let_go()\n        self._clocks.stop()\n",
        "        self._wire.close()\n        self._clocks.stop()\n",
        ("tests/server/test_lanes.py", "tests/server/test_requests.py"),
    ),
    Fault(
        "a client of HTTP that leaves cancels nothing",
        "wkvm/gateway/door/listening.py",
        "app, handler_cancellation=True, shutdown_timeout=CLOSE_TIMEOUT_S",
        "app, handler_cancellation=False, shutdown_timeout=CLOSE_TIMEOUT_S",
        ("tests/gateway/test_door_deadlines.py",),
    ),
    Fault(
        "headers of a request have no deadline",
        HTTP,
        "        super().connection_made(transport)\n        self._expect_headers()\n",
        "        super().connection_made(transport)\n",
        ("tests/gateway/test_door_deadlines.py",),
    ),
    Fault(
        "a client of HTTP that does not read is kept",
        HTTP,
        "        if n_read < MIN_READ_RATE * self._config.write_timeout_s:\n",
        "        if n_read < 0:\n",
        ("tests/gateway/test_door_deadlines.py",),
    ),
    Fault(
        "connections of HTTP have no limit",
        "wkvm/gateway/door/listening.py",
        "is_full = self.n_connections >= self._gateway.config.max_connections",
        "is_full = self.n_connections > 10 * self._gateway.config.max_connections",
        ("tests/gateway/test_door.py",),
    ),
    Fault(
        "what is nested too deeply is read",
        "wkvm/gateway/nesting.py",
        "    if _is_deep(written):\n",
        "    if False:\n",
        ("tests/gateway/test_nesting.py",),
    ),
    Fault(
        "one level more of nesting is read",
        "wkvm/gateway/nesting.py",
        "default=0) > MAX_NESTING",
        "default=0) > MAX_NESTING + 1",
        ("tests/gateway/test_nesting.py",),
    ),
    Fault(
        "an id that is one beyond the vocabulary is taken",
        "wkvm/core/sampling.py",
        "and max(token_ids) < vocab_size\n",
        "and max(token_ids) <= vocab_size\n",
        ("tests/core/test_sampling_params.py",),
    ),
    Fault(
        "true is taken for an id",
        "wkvm/core/sampling.py",
        "set(map(type, token_ids)) == {int} and",
        "set(map(type, token_ids)) <= {int, bool} and",
        ("tests/core/test_sampling_params.py",),
    ),
    Fault(
        "NaN is taken for a number",
        "wkvm/core/sampling.py",
        "if type(value) not in (int, float) or value != value or value in (math.inf, -math.inf):",
        "if type(value) not in (int, float) or value in (math.inf, -math.inf):",
        ("tests/core/test_sampling_params.py",),
    ),
    Fault(
        "the queue has no limit",
        "wkvm/core/checks.py",
        "    if n_waiting > config.max_queue:\n",
        "    if n_waiting < 0:\n",
        ("tests/core/test_scheduler_submit.py",),
    ),
    Fault(
        "the ids that wait have no limit",
        "wkvm/core/checks.py",
        "> config.max_queued_tokens:\n",
        "> 2**62:\n",
        ("tests/core/test_scheduler_submit.py",),
    ),
    Fault(
        "a request has no deadline",
        "wkvm/core/scheduler.py",
        "            self._deadlines.set(request.request_id, deadline)\n",
        "",
        ("tests/core/test_scheduler_commit.py", "tests/core/test_scheduler_plan.py"),
    ),
    Fault(
        "a server that drains takes new requests",
        "wkvm/core/scheduler.py",
        "        if self._draining:\n            raise DrainingError\n",
        "",
        ("tests/core/test_scheduler_submit.py",),
    ),
    Fault(
        "a drain waits for ever",
        "wkvm/engine/loop.py",
        "            async with asyncio.timeout(grace_s):\n",
        "            async with asyncio.timeout(None):\n",
        ("tests/engine/test_loop.py",),
    ),
    Fault(
        "a server that ends does not save what is in memory",
        "wkvm/engine/states/service.py",
        "                self._backing.store.flush()\n",
        "                pass\n",
        ("tests/engine/states",),
    ),
    Fault(
        "an engine that is stuck is ready",
        "wkvm/gateway/monitoring/health.py",
        '        return "engine_stuck"\n',
        "        return None\n",
        ("tests/gateway/test_health.py",),
    ),
    Fault(
        "a gateway that drains is ready",
        "wkvm/gateway/monitoring/health.py",
        '    if gateway.is_draining:\n        return "draining"\n',
        "",
        ("tests/gateway/test_health.py",),
    ),
    Fault(
        "a step that fails is passed over",
        "wkvm/engine/loop.py",
        "            self._engine.fail(step.plan, StepFailedError(), self._clock())\n",
        "            pass\n",
        ("tests/engine/test_loop.py",),
    ),
    Fault(
        "an engine whose bookkeeping is broken goes on as if nothing were",
        "wkvm/engine/loop.py",
        '            logger.exception("the engine is broken and stops")\n            raise\n',
        '            logger.exception("the engine is broken and stops")\n',
        ("tests/engine/test_loop.py",),
    ),
    Fault(
        "a body that is an expression is evaluated",
        "wkvm/gateway/nesting.py",
        "    if _is_deep(written):\n",
        "    with __import__('contextlib').suppress(Exception):\n        eval(written)\n"
        "    if _is_deep(written):\n",
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
        ("tests/supply/test_nothing_is_run.py",),
    ),
)
