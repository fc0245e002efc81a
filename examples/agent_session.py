"""An agent on a named state: what it read stays on the server, and branches try things out.

    wkvm serve --state-dir states
    python examples/agent_session.py [ADDRESS]

A second run goes on with the same state: what was said before is not sent again.
"""

import contextlib
import sys

import wkvm_client
from wkvm_client import Session
from wkvm_client.errors import StateNotFoundError

from wkvm.assembly.models import BUNDLED
from wkvm.gateway.text import load_tokenizer

tokenizer = load_tokenizer(BUNDLED)


def told(session: Session, text: str, temperature: float = 0.0, seed: int | None = None) -> str:
    """Say something to a session; how it goes on."""
    ids = tokenizer.encode(text)
    with session.generate(
        ids, max_tokens=24, temperature=temperature, seed=seed, ignore_eos=True
    ) as stream:
        return tokenizer.decode(stream.completion().ids)


with wkvm_client.connect(*sys.argv[1:] or ["tcp://127.0.0.1:8001"]) as client:
    agent = client.session("agent", checkpoint_every=64)
    if agent.refresh() is None:
        agent.append(tokenizer.encode("Once upon a time there was a fox named Tom."))

    # three ways to go on from here, each from the same bytes
    for n in range(3):
        name = f"agent-try-{n}"
        with contextlib.suppress(StateNotFoundError):
            client.states.delete(name)
        with agent.fork(name) as branch:
            print(f"{n}:", told(branch, " One day Tom", temperature=1.0, seed=n))

    print("said:", told(agent, " Tom wanted to"))
    agent.roll_back()
    print("unsaid, and said again:", told(agent, " Tom wanted to"))
    info = agent.save()
    print(f"{info.ref}: {info.n_tokens} tokens in {info.n_bytes} bytes, {info.ack}")
