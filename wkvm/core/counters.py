"""What the scheduler has counted since the start."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wkvm.core.request import Status


@dataclass(slots=True)
class Counters:
    """Counts that only rise.

    Attributes:
        n_requests: taken; each choice is one.
        n_ended: by the status they ended with.
        n_prompt_tokens: absorbed.
        n_output_tokens: produced.
        n_steps: run, failed ones included.
    """

    n_requests: int = 0
    n_ended: dict[Status, int] = field(
        default_factory=lambda: {status: 0 for status in Status if status.is_final}
    )
    n_prompt_tokens: int = 0
    n_output_tokens: int = 0
    n_steps: int = 0

    def by_name(self) -> Mapping[str, int]:
        """The counts by the names that clients know."""
        return {
            "requests_total": self.n_requests,
            **{f"{status}_total": n for status, n in self.n_ended.items()},
            "prompt_tokens_total": self.n_prompt_tokens,
            "output_tokens_total": self.n_output_tokens,
            "steps_total": self.n_steps,
        }
