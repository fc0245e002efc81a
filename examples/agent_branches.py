"""64 agents fork from one memory; one is made to forget; the server is killed: what does each know?

    python examples/agent_branches.py [FOLDER]

It starts a server of its own, on the model that comes with wkvm, and needs the extra ``engine``.
With FOLDER the states are kept there, to be looked at:  wkvm serve --state-dir FOLDER/states
(and http://127.0.0.1:8000 in a browser).
"""

import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import wkvm_client
from wkvm_client.blocking import Client

from wkvm.assembly.models import BUNDLED
from wkvm.gateway.text import load_tokenizer

FACT = (
    "Once upon a time, there was a clever fox named Omar."
    " Omar lived in a small house near the forest."
)
# fmt: off
FRIENDS = [
    "Tim", "Tom", "Ben", "Max", "Sam", "Leo", "Jack", "Finn", "Bob", "Billy", "Noah", "Adam",
    "Luke", "Oscar", "Charlie", "Peter", "Henry", "Toby", "Jake", "Danny", "Hugo", "Eli", "Owen",
    "Ned", "Gus", "Sami", "Ravi", "Kofi", "Theo", "Lily", "Mia", "Anna", "Emma", "Sue", "Lucy",
    "Rosie", "Sara", "Ella", "Molly", "Nina", "Zoe", "Ruby", "Amy", "Kate", "Lola", "Daisy", "Jane",
    "Mary", "Ivy", "Bella", "Poppy", "Tara", "Grace", "Hana", "Maya", "Asha", "Clara", "Nora",
    "May", "Tim", "Tom", "Ben", "Max", "Sam",
]
# fmt: on
AGENTS = [f"agent-{n:02}" for n in range(len(FRIENDS))]
FORGETFUL = "agent-17"

tokenizer = load_tokenizer(BUNDLED)


@contextmanager
def serving(states: Path) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """A server that keeps its states in a folder, and a client of it."""
    command = [sys.executable, "-m", "wkvm", "serve", "--state-dir", str(states)]
    with TemporaryDirectory() as sockets:
        where = ["--port", "none", "--binary-port", "none", "--binary-uds", f"{sockets}/wkvm"]
        with subprocess.Popen([*command, *where], stdout=subprocess.PIPE, text=True) as server:
            try:
                assert server.stdout is not None
                ready, _, address = server.stdout.readline().strip().partition(" ")
                if ready != "ready":
                    sys.exit("there is no server")
                with wkvm_client.connect(address) as client:
                    yield server, client
            finally:
                server.terminate()


def tell(client: Client, texts: Sequence[str]) -> None:
    """Let each agent read a text of its own, all at once; its state becomes the next version."""
    streams = [
        client.generate(
            tokenizer.encode(text), state=agent, save_as=agent, max_tokens=1, temperature=0
        )
        for agent, text in zip(AGENTS, texts, strict=True)
    ]
    for stream in streams:
        stream.completion()


def ask(client: Client, opening: str) -> list[str]:
    """The word that each agent goes on with, all at once. Their states stay as they are."""
    ids = tokenizer.encode(opening)
    streams = [
        client.generate(ids, state=agent, max_tokens=1, temperature=0, ignore_eos=True)
        for agent in AGENTS
    ]
    return [tokenizer.decode(stream.completion().ids).strip() for stream in streams]


def main(states: Path) -> None:
    """The whole story; ``states`` is a folder that is not there yet."""
    with serving(states) as (server, client):
        client.states.create("planted", tokenizer.encode(FACT))
        print(f"planted: {FACT}")

        start = time.perf_counter()
        client.states.fork("planted", AGENTS)
        took = time.perf_counter() - start
        print(f"forked:  {len(AGENTS)} agents in {took * 1e3:.0f} ms; they share one file")

        start = time.perf_counter()
        tell(client, [f" One day, he met a friend named {friend}." for friend in FRIENDS])
        took = time.perf_counter() - start
        print(f"told:    each agent the name of a friend of its own, in {took * 1e3:.0f} ms")

        client.states.mutate("decay", FORGETFUL, FORGETFUL, {"factor": 0})
        print(f"mutated: the memory of {FORGETFUL} is multiplied by 0")

        before = [client.states.get(agent).content_id for agent in AGENTS]
        server.kill()
    print("killed:  the server, with SIGKILL; now it starts again\n")

    with serving(states) as (_, client):
        after = [client.states.get(agent).content_id for agent in AGENTS]
        heroes = ask(client, ' "Thank you,')
        friends = ask(client, ' "Hello," said')

    print("what each agent knows: the fox, and its own friend")
    facts = zip(AGENTS, heroes, friends, strict=True)
    cells = [f"{agent}: {hero}, {friend}" for agent, hero, friend in facts]
    for at in range(0, len(cells), 4):
        print("  ".join(f"{cell:<23}" for cell in cells[at : at + 4]).rstrip())

    same = sum(one == other for one, other in zip(before, after, strict=True))
    knows_fox = sum(hero == "Omar" for hero in heroes)
    knows_friend = sum(one == other for one, other in zip(friends, FRIENDS, strict=True))
    print(f"\n{same} of {len(AGENTS)} states have the bytes that they had before")
    print(f"{knows_fox} agents know the fox, {knows_friend} their own friend")


if __name__ == "__main__":
    with TemporaryDirectory() as temporary:
        states = Path(sys.argv[1] if sys.argv[1:] else temporary) / "states"
        if states.exists():
            sys.exit(f"{states} is there already: name another folder")
        states.parent.mkdir(parents=True, exist_ok=True)
        main(states)
