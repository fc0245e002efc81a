"""Prompts of many tenants over thousands of steps: nothing is left over, nobody is left out."""

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from tests.core.driver import answer, ends, make_scheduler, submit
from wkvm.core.config import CUT_MULTIPLE
from wkvm.core.plan import StepPlan
from wkvm.core.prompts import FIRST
from wkvm.core.request import Status
from wkvm.core.sampling import SamplingParams

N_STEPS = 250
MOST_TOKENS = 700
N_SLOTS = 12


@dataclass(frozen=True)
class Load:
    """What one tenant asks for all the time: how many prompts at once, and how long they are."""

    n_requests: int
    least: int
    most: int
    priorities: tuple[int, ...] = (0,)


class Run:
    """A scheduler whose requests want one id each, and what their prompts got.

    Attributes:
        totals: tokens of each tenant.
        spread: by how much the tenants' totals were apart at most after a step.
        longest_wait: how many steps a tenant's first prompt in a slot went without a token at most.
        most_left: how much a step left at most of what a prompt could have taken a cut of.
    """

    def __init__(self, loads: Mapping[str, Load], budget: int, seed: int) -> None:
        self._scheduler = make_scheduler(n_slots=N_SLOTS, max_num_batched_tokens=budget)
        self._loads = loads
        self._budget = budget
        self._random = random.Random(seed)
        self._owner = dict[int, str]()
        self._rest = dict[int, int]()
        self._waited = dict[int, int]()
        self._live = Counter[str]()
        self._at = 0
        self.totals = Counter[str]()
        self.spread = self.longest_wait = self.most_left = 0

    def step(self) -> None:
        for tenant, load in self._loads.items():
            while self._live[tenant] < load.n_requests:
                self._submit(tenant, load)
        plan = self._scheduler.plan(0.0)
        assert plan is not None
        self._look_at(plan)
        self._scheduler.commit(plan, answer(plan), 0.0)
        for end in ends(self._scheduler.take_events()):
            self._live[self._owner.pop(end.request_id)] -= 1
            del self._rest[end.request_id], self._waited[end.request_id]

    def _submit(self, tenant: str, load: Load) -> None:
        self._at += 1
        length = self._random.randint(load.least, load.most)
        priority = self._random.choice(load.priorities)
        one = SamplingParams(max_tokens=1)
        submit(self._scheduler, self._at, length, one, tenant=tenant, priority=priority)
        self._live[tenant] += 1
        self._owner[self._at] = tenant
        self._rest[self._at] = length
        self._waited[self._at] = 0

    def _look_at(self, plan: StepPlan) -> None:
        given = {row.request_id: row.n_ids for row in plan.rows}
        left = self._budget - sum(given.values())
        waiting = set[str]()
        for request_id, owner in self._owner.items():
            if self._scheduler.status(request_id) is not Status.RUNNING:
                continue
            n_tokens = given.get(request_id, 0)
            self.totals[owner] += n_tokens
            self._rest[request_id] -= n_tokens
            if owner not in waiting:
                waiting.add(owner)
                self._waited[request_id] = 0 if n_tokens else self._waited[request_id] + 1
                self.longest_wait = max(self.longest_wait, self._waited[request_id])
            if self._rest[request_id] >= CUT_MULTIPLE:
                self.most_left = max(self.most_left, left)
        totals = [self.totals[tenant] for tenant in self._loads]
        self.spread = max(self.spread, max(totals) - min(totals))


@pytest.mark.parametrize("budget", [64, 192, 1024])
@pytest.mark.parametrize("n_tenants", [1, 2, 4])
def test_every_step_is_full_and_the_first_prompt_of_each_tenant_gets_on(
    budget: int, n_tenants: int
) -> None:
    each = N_SLOTS // n_tenants
    loads = {str(at): Load(each, 1, MOST_TOKENS) for at in range(n_tenants)}
    run = Run(loads, budget, seed=budget + n_tenants)
    for _ in range(N_STEPS):
        run.step()
    assert run.most_left < CUT_MULTIPLE
    # Its tenant has something every so many steps, and it an eighth of that, in cuts.
    assert run.longest_wait <= (FIRST + 1) * n_tenants


@pytest.mark.parametrize("budget", [64, 100, 192, 256, 448])
def test_tenants_have_the_same_whatever_they_ask_for(budget: int) -> None:
    loads = {
        "many": Load(5, 94, 94),
        "long": Load(1, 10**5, 10**5),
        "ranked": Load(4, MOST_TOKENS, MOST_TOKENS, priorities=(0, 1, 2)),
        "few": Load(2, 10**5, 10**5),
    }
    run = Run(loads, budget, seed=budget)
    for _ in range(N_STEPS):
        run.step()
    assert run.spread <= 3 * CUT_MULTIPLE
