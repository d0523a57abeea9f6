"""A tree of texts that were read, and the checkpoint of each: so that a prompt that begins like one of them goes on there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from hybridge.cache.errors import UsageError
from hybridge.runtime.defaults import DEFAULT_BYTES
from hybridge.runtime.sessions.checkpoint import Checkpoint, RowSegment


@dataclass(eq=False)
class Node:
    """A place in the tree: its text is that of ``parent`` and ``tokens`` behind it. children by their first token."""

    parent: Node | None = None
    tokens: list[int] = field(default_factory=list)
    children: dict[int, Node] = field(default_factory=dict)
    checkpoint: Checkpoint | None = None


class PrefixCache:
    """Checkpoints by their texts, of at most ``budget`` bytes together; what was used least recently goes first.

    Rows by position that longer texts need stay as long as one of these does, and are counted once. One thread at a time.
    """

    def __init__(self, budget: int = DEFAULT_BYTES, used: Callable[[Checkpoint], None] | None = None) -> None:
        """budget: bytes; 0 keeps nothing. used: called with each checkpoint that is kept or found. Raises UsageError."""
        if budget < 0:
            raise UsageError(f"a cache of {budget} bytes cannot be; give 0 or more.")
        self.budget, self.used = budget, used
        self._root = Node()
        self._nodes: OrderedDict[Checkpoint, Node] = OrderedDict()  # the one that was used last comes last
        self._uses: dict[RowSegment, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nbytes(self) -> int:
        """Return the bytes of everything that is kept."""
        return self._bytes

    def find(self, tokens: Sequence[int]) -> Checkpoint | None:
        """Return the checkpoint of the longest beginning of ``tokens``, all of them included; none if there is none."""
        found, node, at = self._root.checkpoint, self._root, 0
        while at < len(tokens) and (child := node.children.get(tokens[at])) is not None:
            end = at + len(child.tokens)
            if list(tokens[at:end]) != child.tokens:
                break
            node, at, found = child, end, child.checkpoint or found
        if found is not None:
            self._nodes.move_to_end(found)
            self._tell(found)
        return found

    def has(self, tokens: Sequence[int]) -> bool:
        """Return whether there is a checkpoint of exactly this text, which then counts as used."""
        found = self.find(tokens)
        return found is not None and found.length == len(tokens)

    def add(self, checkpoint: Checkpoint) -> None:
        """Keep a checkpoint in the place of another one of its text, as far as the budget goes."""
        node = self._node(checkpoint.tokens)
        if node.checkpoint is not None:
            self._forget(node.checkpoint)
        node.checkpoint = checkpoint
        self._nodes[checkpoint] = node
        self._bytes += checkpoint.bounded_bytes
        self._use(checkpoint.segment)
        self._tell(checkpoint)
        while self._bytes > self.budget:
            self._drop(next(iter(self._nodes)))

    def clear(self) -> None:
        """Keep nothing any more."""
        for checkpoint in list(self._nodes):
            self._drop(checkpoint)

    def _tell(self, checkpoint: Checkpoint) -> None:
        if self.used is not None:
            self.used(checkpoint)

    # The tree

    def _node(self, tokens: list[int]) -> Node:
        """Return the place of a text, made where it is not there yet."""
        node, at = self._root, 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = Node(node, tokens[at:])
                node.children[tokens[at]] = child
            same = _common(child.tokens, tokens, at)
            node = child if same == len(child.tokens) else _split(child, same)
            at += same
        return node

    def _drop(self, checkpoint: Checkpoint) -> None:
        """Forget a checkpoint, and places that lead to none."""
        node: Node | None = self._nodes[checkpoint]
        self._forget(checkpoint)
        while node is not None and node.parent is not None and node.checkpoint is None and not node.children:
            del node.parent.children[node.tokens[0]]
            node = node.parent

    # Bytes

    def _forget(self, checkpoint: Checkpoint) -> None:
        self._nodes.pop(checkpoint).checkpoint = None
        self._bytes -= checkpoint.bounded_bytes
        self._release(checkpoint.segment)

    def _use(self, segment: RowSegment | None) -> None:
        """Count a segment, and those before it if it is new here."""
        while segment is not None:
            self._uses[segment] = self._uses.get(segment, 0) + 1
            if self._uses[segment] > 1:
                return
            self._bytes += segment.nbytes
            segment = segment.parent

    def _release(self, segment: RowSegment | None) -> None:
        """Take back what ``_use`` counted."""
        while segment is not None:
            self._uses[segment] -= 1
            if self._uses[segment]:
                return
            del self._uses[segment]
            self._bytes -= segment.nbytes
            segment = segment.parent


def _common(edge: list[int], tokens: list[int], at: int) -> int:
    """Return how many tokens of ``edge`` are those of ``tokens`` from ``at`` on."""
    if tokens[at : at + len(edge)] == edge:
        return len(edge)
    return next((i for i, (a, b) in enumerate(zip(edge, tokens[at:], strict=False)) if a != b), len(tokens) - at)


def _split(node: Node, at: int) -> Node:
    """Put a new place into the way to ``node``, ``at`` tokens behind its parent, and return it."""
    assert node.parent is not None
    middle = Node(node.parent, node.tokens[:at], {node.tokens[at]: node})
    node.parent.children[node.tokens[0]] = middle
    node.parent, node.tokens = middle, node.tokens[at:]
    return middle
