"""What the core's tests share: short ways to make requests and to run steps without a model."""

from wkvm.core.config import EngineConfig
from wkvm.core.plan import RowPlan, StepPlan, StepResult
from wkvm.core.request import EndEvent, Event, Logprobs, RequestSpec, TokenEvent, by_request
from wkvm.core.sampling import SamplingParams
from wkvm.core.scheduler import Scheduler

VOCAB_SIZE = 1000
EOS_IDS = (0, 1)


def make_scheduler(
    *,
    n_slots: int = 4,
    max_num_batched_tokens: int = 2048,
    max_queue: int = 100,
    max_queue_of_all: int | None = None,
    max_queued_tokens: int = 1_000_000,
    max_completed_requests: int = 100,
    max_model_len: int | None = None,
    max_slots_per_tenant: int | None = None,
    request_timeout_s: float = 600.0,
    stall_timeout_s: float = 60.0,
    decode_prompt_tokens: int | None = None,
    depth: int = 1,
) -> Scheduler:
    config = EngineConfig(
        n_slots=n_slots,
        max_num_batched_tokens=max_num_batched_tokens,
        max_queue=max_queue,
        max_queue_of_all=max_queue_of_all,
        max_queued_tokens=max_queued_tokens,
        max_completed_requests=max_completed_requests,
        max_model_len=max_model_len,
        max_slots_per_tenant=max_slots_per_tenant,
        request_timeout_s=request_timeout_s,
        stall_timeout_s=stall_timeout_s,
    )
    return Scheduler(
        config,
        vocab_size=VOCAB_SIZE,
        eos_ids=EOS_IDS,
        depth=depth,
        decode_prompt_tokens=decode_prompt_tokens,
    )


def submit(
    scheduler: Scheduler,
    request_id: int,
    prompt: int | tuple[int, ...] = 3,
    params: SamplingParams | None = None,
    *,
    now: float = 0.0,
    tenant: str = "local",
    priority: int = 0,
    timeout_s: float | None = None,
    credit: int | None = None,
) -> None:
    """Submit a request, whose choices get the ids from here on; a number is a prompt's length."""
    ids = prompt if isinstance(prompt, tuple) else prompt_of(prompt)
    params = params or SamplingParams()
    spec = RequestSpec(
        prompt=ids,
        params=params,
        tenant=tenant,
        priority=priority,
        timeout_s=timeout_s,
        credit=credit,
    )
    submit_spec(scheduler, request_id, spec, now=now)


def submit_spec(
    scheduler: Scheduler, request_id: int, spec: RequestSpec, *, now: float = 0.0
) -> None:
    n = spec.params.n
    request_ids = range(request_id, request_id + n)
    scheduler.submit(request_ids, spec, seed=7, branches=range(n), now=now)


def prompt_of(length: int) -> tuple[int, ...]:
    """Ids of which each says where it stands, and none ends a turn."""
    return tuple(10 + position % 900 for position in range(length))


def answer(plan: StepPlan, token_id: int = 500) -> StepResult:
    """A result in which every row that samples gets the same id."""
    return StepResult(
        token_ids=tuple(token_id if row.samples else None for row in plan.rows),
        prompt_logprobs={
            index: scored
            for index, row in enumerate(plan.rows)
            if row.params.prompt_logprobs is not None and (scored := scores(row))
        },
    )


def scores(row: RowPlan) -> tuple[Logprobs, ...]:
    """Log probabilities, not true ones, of the prompt ids that a row's logits score."""
    scored = [*row.ids[1:], row.next_id] if row.position < row.n_prompt else []
    return tuple(Logprobs(i, -1.0, 1, ()) for i in scored if i is not None)


def step(scheduler: Scheduler, now: float = 0.0, token_id: int = 500) -> StepPlan:
    """Plan and commit a step that has something to run."""
    plan = scheduler.plan(now)
    assert plan is not None
    scheduler.commit(plan, answer(plan, token_id), now)
    return plan


def shape(plan: StepPlan | None) -> dict[int, int]:
    """How many tokens each request of a plan absorbs."""
    assert plan is not None
    return {row.request_id: row.n_ids for row in plan.rows}


def ends(events: list[Event]) -> list[EndEvent]:
    return [event for event in events if isinstance(event, EndEvent)]


def tokens(events: list[Event]) -> list[TokenEvent]:
    return [event for event in by_request(events) if isinstance(event, TokenEvent)]
