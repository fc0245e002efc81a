"""State machines of hypothesis, for as many steps as are asked for."""

import hypothesis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, run_state_machine_as_test

from tests.soak import SOAKING, seed

EXAMPLES_AT_ONCE = 200
"""Hypothesis remembers what it has tried, so that thousands of examples take ever more memory."""


def walk(machine: type[RuleBasedStateMachine], n_steps: int, *, length: int = 50) -> int:
    """Let a machine take at least ``n_steps`` steps, from many beginnings.

    Which steps these are follows from ``soak.seed``. A failure is shrunk, and names the steps.

    Args:
        length: steps after one beginning.

    Returns:
        How many steps it took.
    """
    n_done, at = 0, 0
    while n_done < n_steps:

        class Counted(machine):  # type: ignore[misc, valid-type]
            @invariant()
            def one_more(self) -> None:
                nonlocal n_done
                # Invariants are checked before the first step too.
                n_done += self._is_begun
                self._is_begun = True

            _is_begun = False

        Counted.__name__ = Counted.__qualname__ = machine.__name__
        left = -(-(n_steps - n_done) // length)
        run_state_machine_as_test(
            hypothesis.seed(seed() * 1_000_000 + at)(Counted),
            settings=settings(
                max_examples=min(left, EXAMPLES_AT_ONCE),
                stateful_step_count=length,
                deadline=None,
                database=None if SOAKING else settings.default.database,  # type: ignore[union-attr]
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
        at += 1
    return n_done
