"""A radix tree over the ids of prompts, in blocks: where several of them begin alike.

Ids are bytes, four each, and a block is ``CUT_MULTIPLE`` of them: nothing is told apart within a
block, since a prompt may only be cut between two.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar

from wkvm.core.config import CUT_MULTIPLE

ID_BYTES = 4
BLOCK_BYTES = CUT_MULTIPLE * ID_BYTES

T = TypeVar("T")


class Node(Generic[T]):
    """A place in the tree: all blocks from the root to here.

    Attributes:
        parent: None for the root, and for a node that was taken out.
        edge: the blocks between the parent and here.
        n_blocks: how many there are from the root.
        children: by their first blocks.
        value: what was put here; None for a mere fork, which has two children or more.
    """

    __slots__ = ("children", "edge", "n_blocks", "parent", "value")

    def __init__(self, parent: "Node[T] | None", edge: bytes, n_blocks: int) -> None:
        self.parent = parent
        self.edge = edge
        self.n_blocks = n_blocks
        self.children = dict[bytes, Node[T]]()
        self.value: T | None = None

    @property
    def n_tokens(self) -> int:
        """How many ids there are from the root to here."""
        return self.n_blocks * CUT_MULTIPLE


class RadixTree(Generic[T]):
    """Values at places in prompts. The root is the empty prompt, and has none.

    Every operation is linear in the bytes that it is given, which are compared as bytes.

    Attributes:
        n_bytes: of the ids that it keeps.
    """

    def __init__(self) -> None:
        self._root = Node[T](None, b"", 0)
        self.n_bytes = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing is in it."""
        return not self._root.children

    def walk(self, ids: bytes) -> tuple[list[Node[T]], int]:
        """Follow ids from the root as far as they lead.

        Returns:
            The nodes that lie wholly on the way, the shortest first; and how many blocks in all
            the ids have in common with what is in the tree, which may end within an edge.
        """
        node, at, passed = self._root, 0, list[Node[T]]()
        while True:
            child = node.children.get(ids[at : at + BLOCK_BYTES])
            if child is None:
                return passed, node.n_blocks
            if not ids.startswith(child.edge, at):
                return passed, node.n_blocks + n_common(ids[at:], child.edge)
            node, at = child, at + len(child.edge)
            passed.append(node)

    def at(self, ids: bytes) -> Node[T]:
        """The node of these ids, whole blocks and one at least; it is made if it is not there.

        Who puts no value there gives it back with ``prune``.
        """
        node, at = self._root, 0
        while at < len(ids):
            child = node.children.get(ids[at : at + BLOCK_BYTES])
            if child is None:
                child = self._grow(node, ids[at:])
            else:
                n = n_common(ids[at:], child.edge) * BLOCK_BYTES
                if n < len(child.edge):
                    child = self._split(child, n)
            node, at = child, at + len(child.edge)
        return node

    def prune(self, node: Node[T]) -> None:
        """Take out a node without a value, as far as nothing else needs it."""
        while node.parent is not None and node.value is None and len(node.children) < 2:
            parent = node.parent
            if node.children:
                (child,) = node.children.values()
                child.edge = node.edge + child.edge
                child.parent = parent
                parent.children[node.edge[:BLOCK_BYTES]] = child
                node.parent = None
                return
            del parent.children[node.edge[:BLOCK_BYTES]]
            self.n_bytes -= len(node.edge)
            node.parent = None
            node = parent

    def nodes(self) -> Iterator[Node[T]]:
        """All nodes but the root."""
        todo = list(self._root.children.values())
        while todo:
            node = todo.pop()
            yield node
            todo += node.children.values()

    def _grow(self, parent: Node[T], edge: bytes) -> Node[T]:
        child = Node[T](parent, edge, parent.n_blocks + len(edge) // BLOCK_BYTES)
        parent.children[edge[:BLOCK_BYTES]] = child
        self.n_bytes += len(edge)
        return child

    def _split(self, node: Node[T], n_bytes: int) -> Node[T]:
        parent, edge = node.parent, node.edge
        if parent is None:
            raise ValueError("the root has no edge")
        middle = Node[T](parent, edge[:n_bytes], parent.n_blocks + n_bytes // BLOCK_BYTES)
        parent.children[edge[:BLOCK_BYTES]] = middle
        node.parent, node.edge = middle, edge[n_bytes:]
        middle.children[node.edge[:BLOCK_BYTES]] = node
        return middle


def n_common(one: bytes, other: bytes) -> int:
    """How many whole blocks two rows of ids have in common from their start."""
    low, high = 0, min(len(one), len(other)) // BLOCK_BYTES
    while low < high:
        middle = (low + high + 1) // 2
        at, end = low * BLOCK_BYTES, middle * BLOCK_BYTES
        if one[at:end] == other[at:end]:
            low = middle
        else:
            high = middle - 1
    return low
