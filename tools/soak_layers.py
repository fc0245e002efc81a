"""What a soak runs: the layers of docs/reliability.md, the tests that show them, and how often.

An owner of a layer adds its trials here. A trial's tests ask ``tests.soak.amount`` how often to try
and end with ``tests.soak.tell``; what they tell is added up over all parts and held to what is
promised, by the words that were told.
"""

from dataclasses import dataclass

PART_LIMIT_S = 480.0
"""No part may take longer, where its trial does not say otherwise."""
ALONE = 1_000
"""As many cores as there are jobs: nothing runs beside such a part."""
LAYERS = {
    0: "a model of the store and the arena",
    1: "a fault in any system call",
    2: "kill -9 at any time",
    3: "power loss",
    4: "full disks and quotas",
    5: "damaged files",
    6: "frames of the binary protocol",
    7: "requests over HTTP",
    8: "many connections",
    9: "overload and draining",
    10: "a day's work, by counts",
    11: "isolation of tenants",
    12: "files of earlier versions",
    13: "on a GPU",
}


@dataclass(frozen=True, slots=True)
class Promise:
    """How often a thing is tried in all parts together.

    Attributes:
        what, unit: as the tests tell it.
        count: at least so many.
    """

    what: str
    count: int
    unit: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """Tests that run in as many processes as there are parts, each with another seed.

    Attributes:
        layer: a key of ``LAYERS``.
        tests: files or node ids, as pytest takes them. What stands in these files, in the code
            that is shipped and in what tests share, is the code of this trial: where none of it
            has changed, parts that are done need not be done again.
        n_parts: how many. Part 1 has the seed 1, and so on.
        part_s: roughly how long a part takes on one core.
        promises: what is told, and how much of it by all parts together.
        limit_s: a part that takes longer has failed.
        n_cores: how many of ``--jobs`` a part counts for: those that it keeps busy.
        needs: programs without which the tests show nothing, such as ``strace``.
    """

    layer: int
    tests: tuple[str, ...]
    n_parts: int
    part_s: float
    promises: tuple[Promise, ...]
    limit_s: float = PART_LIMIT_S
    n_cores: int = 1
    needs: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """By which its results are known."""
        return " ".join(self.tests)

    @property
    def files(self) -> tuple[str, ...]:
        """Where its tests are."""
        return tuple(sorted({one.partition("::")[0] for one in self.tests}))


A_DAYS_WORK = "test_after_a_days_work_all_is_as_before_and_nothing_has_grown"
KILLS_ON_A_GPU = "test_sessions_through_kills_end_with_the_bits_of_undisturbed_ones"

STORE_FAULTS = "tests/state/test_store_faults.py"
STORE_CRASHES = "tests/state/test_store_crashes.py"
KILLS = "tests/states/test_kills.py"
FRAMES = "tests/hostile/test_frames.py::test_each_frame_is_answered_once_or_ends_its_connection"
FILE_SYSTEMS = ("ext4", "btrfs", "xfs")

TRIALS: tuple[Trial, ...] = (
    # Layer 0.
    Trial(
        layer=0,
        tests=("tests/state/test_store_machine.py",),
        n_parts=20,
        part_s=190,
        promises=(Promise("a store against its model", 1_000_000, "steps"),),
    ),
    Trial(
        layer=0,
        tests=("tests/core/test_scheduler_machine.py",),
        n_parts=4,
        part_s=180,
        promises=(Promise("a scheduler against its model", 1_000_000, "steps"),),
    ),
    Trial(
        layer=0,
        tests=("tests/state/test_arena_machine.py",),
        n_parts=4,
        part_s=240,
        promises=(Promise("an arena against its model", 1_000_000, "steps"),),
    ),
    Trial(
        layer=0,
        tests=(
            f"{STORE_FAULTS}::test_power_may_go_at_any_operation",
            f"{STORE_FAULTS}::test_any_operation_may_fail",
        ),
        n_parts=16,
        part_s=200,
        # All programs of up to three steps, 273 a part: how many operations these are follows from
        # what the store does, and is known once it has been run.
        promises=(
            Promise("power goes at each operation of all programs", 42_900, "cuts"),
            Promise("each operation of all programs fails", 54_700, "failures"),
        ),
    ),
    # Layer 1.
    Trial(
        layer=1,
        tests=("tests/state/test_store_syscalls.py",),
        n_parts=8,
        part_s=150,
        promises=(
            Promise("system calls fail, each with 6 errors, once and for ever", 4_400, "runs"),
            Promise("reads and writes are short", 600, "runs"),
            Promise("a kill before and after each system call", 740, "kills"),
        ),
        needs=("cc",),
    ),
    # Layer 2.
    Trial(
        layer=2,
        tests=(f"{STORE_CRASHES}::test_kill_9_loses_nothing_that_was_acknowledged",),
        n_parts=8,
        part_s=40,
        promises=(Promise("kill -9 of a process with a store", 1_000, "kills"),),
    ),
    Trial(
        layer=2,
        tests=(f"{KILLS}::test_a_kill_loses_and_spoils_nothing_that_was_acknowledged",),
        n_parts=4,
        part_s=120,
        promises=(
            Promise("kill -9 of a server, states without pages", 160, "kills"),
            Promise("kill -9 of a server, states with pages", 160, "kills"),
        ),
    ),
    # Layer 3.
    *(
        Trial(
            layer=3,
            tests=(
                f"{STORE_CRASHES}::test_power_loss_loses_nothing_that_was_acknowledged[{kind}]",
            ),
            n_parts=4,
            part_s=60,
            promises=(Promise(f"loss of power on {kind}", 500, "cuts"),),
            needs=(f"mkfs.{kind}",),
        )
        for kind in FILE_SYSTEMS
    ),
    *(
        Trial(
            layer=3,
            tests=(
                f"{KILLS}::test_a_loss_of_power_loses_and_spoils_nothing_that_was_acknowledged"
                f"[{kind}]",
            ),
            n_parts=3,
            part_s=100,
            promises=(Promise(f"loss of power under a server, {kind}", 180, "cuts"),),
            needs=(f"mkfs.{kind}",),
        )
        for kind in FILE_SYSTEMS
    ),
    Trial(
        layer=3,
        tests=(
            f"{STORE_CRASHES}::test_power_loss_is_noticed_where_syncs_are_left_out",
            f"{KILLS}::test_a_loss_of_power_is_noticed_where_syncs_are_ignored",
        ),
        n_parts=4,
        part_s=60,
        promises=(
            Promise("where files are not synced, it is noticed", 4, "losses"),
            Promise("where the catalogue is not synced, it is noticed", 4, "losses"),
            Promise("where a library ignores syncs, it is noticed", 4, "losses"),
        ),
        needs=("mkfs.ext4", "cc"),
    ),
    # Layer 4.
    Trial(
        layer=4,
        tests=("tests/state/test_store_full.py",),
        n_parts=4,
        part_s=120,
        promises=(
            Promise("disks of another size are filled", 256, "sizes"),
            Promise("a disk is filled and freed", 1_000, "cycles"),
        ),
        needs=("mount",),
    ),
    # Layer 5.
    Trial(
        layer=5,
        tests=("tests/state/test_store_rot.py",),
        n_parts=8,
        part_s=150,
        promises=(
            Promise("payloads are damaged", 100_000, "damages"),
            Promise("the catalogue is damaged", 8_000, "damages"),
        ),
    ),
    # Layer 6.
    Trial(
        layer=6,
        tests=(f"{FRAMES}[binary]",),
        n_parts=20,
        part_s=120,
        promises=(Promise("frames of the binary protocol", 10_000_000, "frames"),),
    ),
    Trial(
        layer=6,
        tests=(f"{FRAMES}[websocket]",),
        n_parts=4,
        part_s=120,
        promises=(Promise("messages over WebSocket", 1_200_000, "frames"),),
    ),
    # Layer 7.
    Trial(
        layer=7,
        tests=("tests/hostile/test_requests.py",),
        n_parts=20,
        part_s=110,
        promises=(Promise("requests of any kind to all routes", 200_000, "requests"),),
    ),
    Trial(
        layer=7,
        tests=("tests/hostile/test_large_bodies.py",),
        n_parts=1,
        part_s=60,
        promises=(Promise("bodies that are much work", 40, "requests"),),
    ),
    Trial(
        layer=7,
        tests=("tests/hostile/test_http_bytes.py",),
        n_parts=2,
        part_s=60,
        promises=(Promise("bytes that are not quite HTTP", 20_000, "connections"),),
    ),
    # Layer 8.
    Trial(
        layer=8,
        tests=("tests/hostile/test_connections.py",),
        n_parts=5,
        part_s=150,
        promises=(
            Promise("connections that stop in the middle", 50_000, "connections"),
            Promise("connections that come and go", 100_000, "connections"),
            Promise("readers that stall, binary", 500, "readers"),
            Promise("readers that stall, http", 500, "readers"),
            Promise("readers that stall, responses", 500, "readers"),
        ),
    ),
    # Layer 9.
    Trial(
        layer=9,
        tests=("tests/overload/test_open_loop.py",),
        n_parts=2,
        part_s=400,
        promises=tuple(
            Promise(f"open loop at twice the capacity, {door}", 300, "seconds")
            for door in ("binary", "HTTP")
        ),
    ),
    Trial(
        layer=9,
        tests=("tests/states/test_stops.py",),
        n_parts=2,
        part_s=150,
        promises=(Promise("SIGTERM at random moments", 100, "stops"),),
    ),
    Trial(
        layer=9,
        tests=("tests/states/test_overload.py",),
        n_parts=5,
        part_s=240,
        promises=tuple(
            Promise(f"fork bomb, {kind}", count, "forks")
            for kind, count in (("binary", 500_000), ("http", 500_000))
        ),
    ),
    # Layer 10.
    Trial(
        layer=10,
        tests=("tests/bench/test_soak.py::" + A_DAYS_WORK,),
        n_parts=5,
        part_s=840,
        limit_s=3600,
        n_cores=2,
        promises=(
            Promise("requests of every kind over both doors", 1_000_000, "requests"),
            Promise("requests given up in every state", 100_000, "aborts"),
            Promise("states forked and deleted", 100_000, "forks"),
            Promise("states hibernated and resumed", 100_000, "hibernations"),
            Promise("bad clients", 1_000, "clients"),
            Promise("bursts of more requests than may wait", 20, "bursts"),
        ),
    ),
    # Layer 11.
    Trial(
        layer=11,
        tests=("tests/isolation/test_sessions.py",),
        n_parts=32,
        part_s=55,
        promises=(
            Promise("sessions of tenants side by side", 100_000, "sessions"),
            Promise("sessions of tenants over real families", 2_000, "sessions"),
        ),
    ),
    Trial(
        layer=11,
        tests=("tests/isolation/test_doors.py::test_how_long_a_key_takes_is_told",),
        n_parts=1,
        part_s=5,
        promises=(Promise("wrong keys, with the right beginning or not", 20_000, "keys"),),
    ),
    Trial(
        layer=11,
        tests=(
            "tests/isolation/test_imports.py::test_a_file_that_lies_is_refused_and_changes_nothing",
        ),
        n_parts=4,
        part_s=20,
        promises=tuple(
            Promise(f"files that lie, over {door}", 10_000, "files") for door in ("binary", "http")
        ),
    ),
    Trial(
        layer=11,
        tests=("tests/isolation/test_canaries.py::test_random_names_leave_the_metrics_small",),
        n_parts=4,
        part_s=60,
        promises=(Promise("random names", 100_000, "names"),),
    ),
    Trial(
        layer=11,
        tests=("tests/isolation/test_prefixes.py", "tests/isolation/test_foreign.py"),
        n_parts=1,
        part_s=60,
        promises=(
            Promise("prompts of one tenant beside those of others", 300, "prompts"),
            Promise("prompts that another tenant may have asked", 2_000, "prompts"),
            Promise("look-ups of what is another's and of what is not", 2_000, "look-ups"),
        ),
    ),
    Trial(
        layer=11,
        tests=("tests/isolation/test_names.py",),
        n_parts=1,
        part_s=120,
        promises=(Promise("hostile names in paths", 40, "names"),),
    ),
    # Layer 12.
    Trial(
        layer=12,
        tests=("tests/state/test_corpus.py",),
        n_parts=1,
        part_s=10,
        promises=(Promise("files of all versions are read as what they were", 12, "files"),),
    ),
    # Layer 13.
    Trial(
        layer=13,
        tests=("tests/engine/test_gpu_faults.py",),
        n_parts=1,
        part_s=150,
        n_cores=ALONE,  # It takes all of the device's memory.
        promises=(
            Promise("isolation, RWKV-7, to the bit", 10_000, "requests"),
            *(
                Promise(f"isolation, {name}, but for ties", 2_000, "requests")
                for name in ("mamba2", "qwen3_next", "falcon_h1", "kimi_linear")
            ),
            Promise("ids out of range", 16, "requests"),
            Promise("a row of NaN among others", 74, "rows"),
            Promise("forks of one state in one step", 1_280, "forks"),
            Promise("no memory for a prompt", 1, "prompts"),
            Promise("no memory at the start", 2, "starts"),
        ),
        needs=("nvidia-smi",),
    ),
    Trial(
        layer=13,
        tests=("tests/states/test_gpu_kills.py::" + KILLS_ON_A_GPU,),
        n_parts=6,
        part_s=90,
        promises=(Promise("kill -9 of a server on a GPU", 50, "kills"),),
        needs=("nvidia-smi",),
    ),
    Trial(
        layer=13,
        tests=(
            "tests/states/test_gpu_kills.py::test_a_server_that_stood_still_goes_on_with_the_same_ids",
        ),
        n_parts=1,
        part_s=30,
        promises=(Promise("a server that stood still for 3 s", 9, "requests"),),
        needs=("nvidia-smi",),
    ),
    # Threats, and what belongs to no layer.
    Trial(
        layer=7,
        tests=("tests/supply/test_audit.py",),
        n_parts=2,
        part_s=40,
        promises=(
            Promise("programs over HTTP", 1_500, "requests"),
            Promise("programs over the binary protocol", 1_000, "frames"),
        ),
    ),
    Trial(
        layer=7,
        tests=(
            "tests/threats/test_values.py",
            "tests/threats/test_limits.py",
            "tests/threats/test_programs.py",
        ),
        n_parts=4,
        part_s=240,
        promises=(
            Promise("any value in any place of a body", 33_000, "requests"),
            Promise("any value in any place of a message", 11_000, "frames"),
            Promise("values at limits of bodies", 7_500, "requests"),
            Promise("programs in every text of a body", 11_000, "requests"),
            Promise("programs in every place of a message", 3_800, "frames"),
        ),
    ),
)
