"""Settings of the engine and the server: frozen, validated on construction, never adjusted."""

import ipaddress
from dataclasses import dataclass

from wkvm.core.api_keys import ApiKey
from wkvm.core.errors import ConfigError
from wkvm.core.layout import MAX_SLOT_PAGES, PAGE_TOKENS, StateOptions
from wkvm.core.sampling import MAX_N

CUT_MULTIPLE = 64
"""A prompt is cut only after a multiple of this many tokens, counted from its start."""

SLOT_GUEST_TOKENS = 4096
"""For each slot, where ``guest_tokens`` is None and nobody looked at the machine's memory."""

MAX_THREADS = 1024
MAX_SLOTS = 2**20
"""More than any machine has memory for; what fits is found when it is asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine.

    Attributes:
        n_slots: how many states can be live at once.
        max_slots_per_tenant: how many of them one tenant may hold, so that some are left
            for others; None for no limit. Of the pages of a guest it may hold the same share.
        guest_tokens: how many tokens the pages of a guest hold, of all live states together, cut
            to whole pages; None for what suits the machine, or a few a slot. Models without
            attention layers have no use for it.
        max_num_batched_tokens: the budget of a step. Each running request gets its one
            token of decode in any case; prompts share what is left.
        decode_prompt_tokens: how much prompts share at most in a step that makes others wait
            for their next id; None for what suits the device: on a CPU, all that is left.
        max_queue: how many requests of a tenant may wait for a slot; each choice is one.
        max_queue_of_all: how many of all tenants together, but that a tenant with less than its
            share of these may always wait; None for no limit. The share is that of as many
            tenants as wait then.
        max_queued_tokens: how many prompt and allowed ids these may have together. Choices of
            one spec share theirs, which count once while any of the choices waits.
        max_queue_s: who would wait longer for a slot is refused at once; None for its own time.
        max_n: how many choices of one prompt a request may ask for.
        max_completed_requests: how many finished requests are remembered.
        max_model_len: limit on prompt plus ``max_tokens``; None for no limit.
        request_timeout_s: from submission to the end, for requests that name none.
        stall_timeout_s: how long a request without credit may hold its slot.
        max_hibernated: how many requests may be put to host memory, where each takes the bytes
            of a state, so that others get their slots; 0 for none.
        prefix_cache_bytes: of host memory, for states on the way through prompts, from which other
            prompts go on that begin alike; 0 keeps none, anywhere.
        prefix_cache_device_bytes: of slots that nobody needs just now, and of pages, for the same;
            None for what suits: half of all on a GPU, and where states have pages.
        prefix_cache_every: keep such a state each so many tokens, besides where messages end; 0
            for nowhere else.
        device: ``auto``, ``cpu`` or ``cuda``.
        dtype: of weights and activations: ``auto`` (float32 on a CPU, the checkpoint's
            on a GPU), ``float32``, ``bfloat16`` or ``float16``.
        quantization: of the large matrices, on a GPU: ``none``, ``fp8`` or ``int8``.
        state_dtype: of the states' matrices: ``auto`` (float32), ``float32``, ``float16`` or
            ``bfloat16``.
        deferred_writes: write a state once in eight decoded tokens; until then they wait in a
            ring beside it. On a GPU only.
        seed: base of the random numbers of requests that bring no seed; None draws one
            from the operating system.
        deterministic: to the bit, what comes of a request depends on nothing but the request: not
            on who else runs, on slots, or on how its prompt was cut. It costs speed.
        poison_freed_slots: fill freed slots with NaN. A debugging aid.
        n_threads: of the CPU path; None takes one for a small model, else all cores.
    """

    n_slots: int = 64
    max_slots_per_tenant: int | None = None
    guest_tokens: int | None = None
    max_num_batched_tokens: int = 2048
    decode_prompt_tokens: int | None = None
    max_queue: int = 1024
    max_queue_of_all: int | None = None
    max_queued_tokens: int = 16 * 1024 * 1024
    max_queue_s: float | None = None
    max_n: int = MAX_N
    max_completed_requests: int = 1024
    max_model_len: int | None = None
    request_timeout_s: float = 600.0
    stall_timeout_s: float = 60.0
    max_hibernated: int = 16
    prefix_cache_bytes: int = 2**30
    prefix_cache_device_bytes: int | None = None
    prefix_cache_every: int = 2048
    device: str = "auto"
    dtype: str = "auto"
    quantization: str = "none"
    state_dtype: str = "auto"
    deferred_writes: bool = False
    seed: int | None = None
    deterministic: bool = False
    poison_freed_slots: bool = False
    n_threads: int | None = None

    def __post_init__(self) -> None:
        _at_least("slots", self.n_slots, 1)
        _at_most("slots", self.n_slots, MAX_SLOTS)
        _at_least("max-slots-per-tenant", self.max_slots_per_tenant, 1)
        _at_least("guest-tokens", self.guest_tokens, PAGE_TOKENS)
        _at_least("max-num-batched-tokens", self.max_num_batched_tokens, 1)
        _at_least("decode-prompt-tokens", self.decode_prompt_tokens, 1)
        _at_least("max-queue", self.max_queue, 0)
        _at_least("max-queue-of-all", self.max_queue_of_all, 0)
        _at_least("max-queued-tokens", self.max_queued_tokens, 0)
        _at_least("max-completed-requests", self.max_completed_requests, 0)
        _at_least("max-hibernated", self.max_hibernated, 0)
        _at_least("prefix-cache-bytes", self.prefix_cache_bytes, 0)
        _at_least("prefix-cache-device-bytes", self.prefix_cache_device_bytes, 0)
        _at_least("prefix-cache-every", self.prefix_cache_every, 0)
        _at_least("max-model-len", self.max_model_len, 1)
        _at_least("threads", self.n_threads, 1)
        _at_most("threads", self.n_threads or 0, MAX_THREADS)
        _positive("max-queue-s", self.max_queue_s)
        _at_least("max-n", self.max_n, 1)
        _at_most("max-n", self.max_n, MAX_N)
        _positive("request-timeout-s", self.request_timeout_s)
        _positive("stall-timeout-s", self.stall_timeout_s)
        _one_of("device", self.device, ("auto", "cpu", "cuda"))
        _one_of("dtype", self.dtype, ("auto", "float32", "bfloat16", "float16"))
        _one_of("quantization", self.quantization, ("none", "fp8", "int8"))
        _one_of("state-dtype", self.state_dtype, ("auto", "float32", "float16", "bfloat16"))
        if self.seed is not None and not 0 <= self.seed < 2**64:
            raise ConfigError("seed", f"{self.seed} is not in [0, 2^64)")

    @property
    def state(self) -> StateOptions:
        """How states are kept."""
        dtype = "float32" if self.state_dtype == "auto" else self.state_dtype
        return StateOptions(dtype, self.deferred_writes)

    @property
    def n_pages(self) -> int:
        """Pages of the guest pool, for a model that has a guest."""
        n_tokens = self.guest_tokens or self.n_slots * SLOT_GUEST_TOKENS
        return n_tokens // PAGE_TOKENS

    @property
    def max_pages_per_tenant(self) -> int:
        """How many of them one tenant may hold."""
        if self.max_slots_per_tenant is None:
            return self.n_pages
        share = self.n_pages * self.max_slots_per_tenant // self.n_slots
        return min(max(share, 1), self.n_pages)

    @property
    def max_pages_per_slot(self) -> int:
        """How many of them one request may get."""
        return min(self.max_pages_per_tenant, MAX_SLOT_PAGES)

    @property
    def max_prompt_tokens(self) -> int:
        """The most prompt tokens of a step."""
        return max(self.max_num_batched_tokens, CUT_MULTIPLE)


MIN_FRAME_BYTES = 64 * 1024
"""The protocol's lower bound on the largest frame of either side."""

MAX_FRAME_BYTES = 2**32 - 1
"""What the length of a frame can say."""

MAX_OUTPUT_BYTES = 2**31
"""A transport counts in 32 bits."""

MAX_COUNT = 2**53
MAX_SECONDS = 2.0**31
"""The largest settings: beyond, clients cannot be told, or timers set."""

API_KEY_VARIABLE = "WKVM_API_KEY"
"""The environment variable that may hold a key, of a server or for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Settings of the binary protocol's server.

    Without a key, only loopback addresses and unix sockets can be served.

    Attributes:
        host: address or name to bind.
        binary_port: TCP port; 0 takes a free one, None serves no TCP.
        binary_uds: path of a unix socket; None serves none.
        api_keys: who may connect. Empty: everybody who can reach the server.
        auth_timeout_s: from the connection's start to its Hello.
        frame_timeout_s: from a frame's first byte to its last.
        ping_interval_s: a peer that has been silent for this long is sent a Ping; 0 sends none.
        max_missed_pings: so many unanswered Pings end a connection.
        idle_timeout_s: a peer that has been silent for this long is given up in any case.
        max_output_bytes: how much may wait to be sent on one connection. From a quarter
            of it on, the connection's requests are held and nothing more is read from it.
        write_timeout_s: how long a connection may stay in that condition.
        max_connections: of all tenants together, those that have not said Hello included.
        max_connections_per_tenant: of one tenant.
        max_lanes: open lanes of one connection.
        max_frame_bytes: payload limit after HelloOk, both ways.
        drain_timeout_s: how long open lanes have to end once the server is told to stop.
        step_timeout_s: a step or event loop that stands still for longer ends the process; 0: no.
        max_loop_lag_s: an event loop that does not turn for longer is written to the log.
    """

    host: str = "127.0.0.1"
    binary_port: int | None = 8001
    binary_uds: str | None = None
    api_keys: tuple[ApiKey, ...] = ()
    auth_timeout_s: float = 5.0
    frame_timeout_s: float = 10.0
    ping_interval_s: float = 15.0
    max_missed_pings: int = 2
    idle_timeout_s: float = 75.0
    max_output_bytes: int = 1024 * 1024
    write_timeout_s: float = 10.0
    max_connections: int = 10_240
    max_connections_per_tenant: int = 1024
    max_lanes: int = 1024
    max_frame_bytes: int = 1024 * 1024
    drain_timeout_s: float = 30.0
    step_timeout_s: float = 600.0
    max_loop_lag_s: float = 1.0

    def __post_init__(self) -> None:
        if self.binary_port is not None and not 0 <= self.binary_port < 2**16:
            raise ConfigError("binary-port", f"{self.binary_port} is not in [0, 65535]")
        if self.binary_uds is not None and not (
            1 <= len(self.binary_uds.encode("utf-8", "surrogateescape")) <= 107
        ):
            raise ConfigError("binary-uds", "a socket's path has 1 to 107 bytes")
        if not self.api_keys and self.binary_port is not None and not is_loopback(self.host):
            raise ConfigError(
                "host",
                f"{self.host!r} is not a loopback address: bind one, or give a key,"
                " by --api-keys-file, --api-key or $WKVM_API_KEY",
            )
        owners = dict[bytes, str]()
        for key in self.api_keys:
            if owners.setdefault(key.digest, key.tenant) != key.tenant:
                raise ConfigError("api-key", f"{key.tenant} and another tenant have the same key")
        for setting, seconds in (
            ("auth-timeout-s", self.auth_timeout_s),
            ("frame-timeout-s", self.frame_timeout_s),
            ("idle-timeout-s", self.idle_timeout_s),
            ("write-timeout-s", self.write_timeout_s),
            ("max-loop-lag-s", self.max_loop_lag_s),
        ):
            _positive(setting, seconds)
        for setting, seconds in (
            ("ping-interval-s", self.ping_interval_s),
            ("drain-timeout-s", self.drain_timeout_s),
            ("step-timeout-s", self.step_timeout_s),
        ):
            _positive(setting, seconds or 1.0)
        _at_least("max-missed-pings", self.max_missed_pings, 1)
        _at_least("max-output-bytes", self.max_output_bytes, 4096)
        _at_most("max-output-bytes", self.max_output_bytes, MAX_OUTPUT_BYTES)
        _at_least("max-connections", self.max_connections, 1)
        _at_least("max-connections-per-tenant", self.max_connections_per_tenant, 1)
        _at_least("max-lanes", self.max_lanes, 1)
        _at_least("max-frame-bytes", self.max_frame_bytes, MIN_FRAME_BYTES)
        _at_most("max-frame-bytes", self.max_frame_bytes, MAX_FRAME_BYTES)


def is_loopback(host: str) -> bool:
    """Whether a host's address, or the name ``localhost``, is reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _at_least(setting: str, value: int | None, low: int) -> None:
    """Check a setting; None is one that was left out."""
    if value is None:
        return
    if value < low:
        raise ConfigError(setting, f"{value} is below {low}")
    _at_most(setting, value, MAX_COUNT)


def _at_most(setting: str, value: int, high: int) -> None:
    if value > high:
        raise ConfigError(setting, f"{value} is above {high}")


def _positive(setting: str, value: float | None) -> None:
    if value is not None and not 0 < value <= MAX_SECONDS:
        raise ConfigError(
            setting, f"{value} is not a positive number of seconds, at most {MAX_SECONDS:.0f}"
        )


def _one_of(setting: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(setting, f"{value!r} is not one of {', '.join(allowed)}")
