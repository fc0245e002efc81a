"""How a request goes on that was cut off: the same again, or from where it was left. No I/O.

A request that keeps its state is sent in one or more *legs*. Where a connection is lost, the same
leg is sent again with its idempotency key and the count of ids that have come, and the server
sends what is missing. Where a stream has moved to another server, or was put aside while nobody
was there, the next leg goes on from the state that was kept.
"""

from dataclasses import dataclass, replace

import msgspec
from wkvm_protocol.messages import MAX_SHORT_TEXT, EndOn, GenerateOn

from wkvm_client.errors import ClientError, StaleVersionError
from wkvm_client.states import StateInfo


@dataclass(frozen=True, slots=True)
class Cut:
    """Why a lane is open and on no connection.

    Attributes:
        error: what it fails with if it cannot go on.
        target: the address where it goes on; empty for the same server.
        left_at: what was kept, and the next leg starts from; None to send the same leg again.
        name: what the state of the same leg is called there; empty for what it is called here.
        n_tokens: how many tokens the state must have there; None where that does not matter.
        version: the version there that has as many, once it was looked up.
    """

    error: ClientError
    target: str = ""
    left_at: EndOn | None = None
    name: str = ""
    n_tokens: int | None = None
    version: int | None = None

    def arrived(self, state: StateInfo) -> "Cut":
        """The same, once it is known what the state is there.

        Raises:
            StaleVersionError: it has moved on, here or there.
        """
        if state.n_tokens != self.n_tokens:
            raise StaleVersionError(
                f"{state.ref} at {self.target} has {state.n_tokens} tokens, where "
                f"{self.n_tokens} were expected: somebody else has moved it on"
            )
        return replace(self, version=state.version)


def can_go_on(message: GenerateOn) -> bool:
    """Whether a stream of this request can be moved: it has one choice, and keeps its state."""
    sampling = message.sampling
    return bool(message.save_as) and sampling.n == 1 and sampling.prompt_logprobs is None


def can_be_repeated(message: GenerateOn) -> bool:
    """Whether sending it again, with the count of ids that have come, loses and repeats nothing.

    Log probabilities are not kept by servers, so what they were missed of could not be had.
    """
    return (
        can_go_on(message)
        and message.sampling.logprobs is None
        and bool(message.idempotency_key)
        and message.on_disconnect != "cancel"
    )


def can_be_sent_elsewhere(message: GenerateOn, n_tokens: int | None) -> bool:
    """Whether a request means the same at the server that its state has moved to.

    There versions have other numbers, and other handles need not be.

    Args:
        n_tokens: how many tokens the state has that the request names, where that is known: then
            it can be found there.
    """
    name, at, _ = message.state.partition("@")
    if message.save_as not in ("", name):
        return False
    return n_tokens is not None or (not at and message.expected_version is None)


def next_leg(
    leg: GenerateOn, cut: Cut, request_id: int, *, n_received: int, credit: int, n_legs: int
) -> GenerateOn:
    """What to send next.

    Args:
        leg: what was sent last.
        n_received: how many of its ids have come.
        credit: how many more may come at first; 0 for no limit.
        n_legs: how many legs there were.
    """
    if cut.left_at is None:
        return msgspec.structs.replace(
            leg,
            request_id=request_id,
            received=n_received,
            credit=credit,
            state=_there(leg.state, cut),
            save_as=(leg.save_as and cut.name) or leg.save_as,
            expected_version=leg.expected_version if cut.version is None else cut.version,
        )
    end, sampling = cut.left_at, leg.sampling
    left = end.prompt_left * 4
    return msgspec.structs.replace(
        leg,
        request_id=request_id,
        prompt=leg.prompt[len(leg.prompt) - left :],
        sampling=msgspec.structs.replace(
            sampling,
            max_tokens=sampling.max_tokens - n_received,
            min_tokens=max(sampling.min_tokens - n_received, 0),
            # the random numbers go on where the state's key has them
            seed=None,
        ),
        credit=credit,
        state=f"{end.name}@{end.version}",
        inline_bytes=0,
        save_as=end.name,
        expected_version=end.version,
        replay=True,
        idempotency_key=_next_key(leg.idempotency_key, n_legs),
        received=0,
    )


def _there(state: str, cut: Cut) -> str:
    """What a state is called where a leg is sent again."""
    if not cut.name:
        return state
    return cut.name if cut.version is None else f"{cut.name}@{cut.version}"


def _next_key(key: str, n_legs: int) -> str:
    """A key of the next leg's own, and the same one whenever this leg is followed by it."""
    end = f"+{n_legs}"
    return key and key[: MAX_SHORT_TEXT - len(end)] + end
