"""Whether an engine that took all slots a GPU has room for ever runs out of memory.

    python tools/gpu_soak.py --output bench/results/FILE.jsonl

Builds an engine over random weights of the 1.5B shape with as many slots as fit, and asks for what
takes the most memory all at once: prompts that fill steps and whose every token is scored,
penalties, bias, allowed ids and log probabilities for over a thousand requests each. One JSON
line: what the states have of the memory, and what is left in the end. Exit status 1 if a request
failed, or the allocator had to try twice.
"""

import argparse
import random
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), *(str(ROOT / part) for part in ("protocol", "clients", "bench"))]

from wkvm_bench.random_model import SIZES, write_random  # noqa: E402

from wkvm.assembly.engine import build_engine  # noqa: E402
from wkvm.core.config import MAX_SLOTS, EngineConfig  # noqa: E402
from wkvm.core.plan import StepPlan  # noqa: E402
from wkvm.core.request import EndEvent, RequestSpec  # noqa: E402
from wkvm.core.sampling import SamplingParams  # noqa: E402
from wkvm.engine.engine import Engine  # noqa: E402
from wkvm.models.registry import describe  # noqa: E402

N_REQUESTS = 1100
"""Of each kind but the long prompts: more than the memory of rules is counted for."""


def main() -> int:
    """Build, ask and write the finding."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--commit", default="unknown")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    from tools.gpu_findings import Findings

    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.pth"
        write_random(path, SIZES["1.5B"], dtype=torch.bfloat16, device="cuda")
        torch.cuda.empty_cache()
        began = time.monotonic()
        config = EngineConfig(
            n_slots=MAX_SLOTS, device="cuda", request_timeout_s=1e6, max_queue=10**5
        )
        engine = build_engine(path, config, served_name="soaked", fits_slots=True)
        record_bytes = describe(path, device="cuda").layout.record_bytes
    build_s = time.monotonic() - began
    n_slots = engine.info.n_slots
    free = torch.cuda.mem_get_info()[0]
    ends = run(engine, list(worst(engine.info.vocab_size, N_REQUESTS)))
    stats = torch.cuda.memory_stats()
    with arguments.output.open("a") as output:
        findings = Findings(output, commit=arguments.commit, command="tools/gpu_soak.py")
        findings.add(
            {
                "soak": "1.5B, all slots that fit",
                "build_s": round(build_s, 2),
                "n_slots": n_slots,
                "states_mib": n_slots * record_bytes >> 20,
                "share_of_states_and_free": n_slots
                * record_bytes
                / (n_slots * record_bytes + free),
                "ends": dict(ends),
                "free_before_mib": free >> 20,
                "free_after_mib": torch.cuda.mem_get_info()[0] >> 20,
                "allocator_retries": stats["num_alloc_retries"],
                "ok": set(ends) == {"LENGTH"} and stats["num_alloc_retries"] == 0,
            }
        )
    return int(findings.n_failed > 0)


def worst(vocab_size: int, n: int) -> Iterator[RequestSpec]:
    """The requests that take the most memory: a few long prompts, and ``n`` of each other kind."""
    rng = random.Random(0)

    def prompt(n_ids: int) -> tuple[int, ...]:
        return tuple(rng.randrange(vocab_size) for _ in range(n_ids))

    scored = SamplingParams(max_tokens=3, prompt_logprobs=20, logprobs=20, ignore_eos=True)
    ruled = SamplingParams(
        max_tokens=6,
        presence_penalty=0.3,
        repetition_penalty=1.1,
        logit_bias=((5, 1.0),),
        allowed_ids=tuple(range(min(100, vocab_size))),
        top_p=0.9,
        ignore_eos=True,
    )
    told = SamplingParams(max_tokens=6, logprobs=20, min_p=0.05, ignore_eos=True)
    for _ in range(8):
        yield RequestSpec(prompt=prompt(2048), params=scored)
    for params in (ruled, told):
        for _ in range(n):
            yield RequestSpec(prompt=prompt(9), params=params)


def run(engine: Engine, specs: Sequence[RequestSpec]) -> Counter[str]:
    """Run requests with as many steps in flight as the engine allows; how many ended how."""
    for spec in specs:
        engine.submit(spec, 0.0)
    flights, ends = deque[StepPlan](), Counter[str]()
    while ends.total() < len(specs):
        while len(flights) < engine.depth and (plan := engine.plan(0.0)) is not None:
            engine.launch(plan)
            flights.append(plan)
        if flights:
            plan = flights.popleft()
            engine.commit(plan, engine.collect(plan), 0.0)
        ends.update(
            event.status.name for event in engine.take_events() if isinstance(event, EndEvent)
        )
    return ends


if __name__ == "__main__":
    sys.exit(main())
