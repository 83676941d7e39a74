"""Draft trees: best-first construction, ancestor mask, and the walk of a verify step.

Algorithm: DDTree (arXiv 2604.12989): of all prefixes of the drafter's block the B with the largest
product of marginals, which a heap yields in order and which are closed under taking prefixes.
Pure functions on numbers; a node's index is its order of construction, so parent < child.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class Tree:
    """A draft tree of N = B + 1 nodes; node 0 is the root, the bonus token of the last step.

    `parents[i] < i`, -1 for the root. `depths[i]` is the distance from the root.
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    depths: tuple[int, ...]

    @property
    def width(self) -> int:
        """Verify width N."""
        return len(self.tokens)

    def mask(self) -> Mask:
        """[N, N]: row i marks the nodes that node i sees, its ancestors and itself."""
        seen = np.eye(self.width, dtype=np.bool_)
        for node in range(1, self.width):
            seen[node] |= seen[self.parents[node]]
        return seen

    def links(self) -> tuple[list[int], list[int]]:
        """(next_token, next_sibling) of each node, -1 for none: SGLang's retrieve arrays."""
        first_child, next_sibling = [-1] * self.width, [-1] * self.width
        youngest = [-1] * self.width
        for node in range(1, self.width):
            parent = self.parents[node]
            if first_child[parent] < 0:
                first_child[parent] = node
            else:
                next_sibling[youngest[parent]] = node
            youngest[parent] = node
        return first_child, next_sibling


def chain(root: int, drafts: Sequence[int]) -> Tree:
    """The tree of a plain DFlash step: the drafts one below the other."""
    width = 1 + len(drafts)
    return Tree((root, *drafts), tuple(range(-1, width - 1)), tuple(range(width)))


def best_first(
    root: int,
    log_probs: Sequence[Sequence[float]],
    tokens: Sequence[Sequence[int]],
    budget: int,
    spine_first: bool = False,
) -> Tree:
    """The tree of the `budget` heaviest prefixes, heaviest first.

    `log_probs[d][r]` and `tokens[d][r]` are the log-probability and the token of rank r (falling)
    at depth d + 1. A prefix's weight is the sum of its log-probabilities; ties go to the smaller
    tuple of ranks. `spine_first` takes the chain of rank 0 before all others. The tree is smaller
    than the budget only when there are no more prefixes.
    """
    deepest = len(log_probs)
    out_tokens, parents, depths = [root], [-1], [0]
    # an entry: (-weight, ranks, parent's node, parent's weight)
    heap: list[tuple[float, tuple[int, ...], int, float]] = []

    def push(ranks: tuple[int, ...], parent: int, base: float) -> None:
        heapq.heappush(heap, (-(base + log_probs[len(ranks) - 1][ranks[-1]]), ranks, parent, base))

    def add(ranks: tuple[int, ...], parent: int, base: float, child: bool) -> float:
        depth, rank = len(ranks), ranks[-1]
        weight = base + log_probs[depth - 1][rank]
        out_tokens.append(tokens[depth - 1][rank])
        parents.append(parent)
        depths.append(depth)
        if rank + 1 < len(log_probs[depth - 1]):
            push((*ranks[:-1], rank + 1), parent, base)
        if child and depth < deepest:
            push((*ranks, 0), len(parents) - 1, weight)
        return weight

    if spine_first:
        weight, spine = 0.0, min(budget, deepest)
        for depth in range(spine):
            weight = add((0,) * (depth + 1), depth, weight, child=depth + 1 == spine)
    elif budget > 0 and deepest:
        push((0,), 0, 0.0)
    while heap and len(parents) <= budget:
        _, ranks, parent, base = heapq.heappop(heap)
        add(ranks, parent, base, child=True)
    return Tree(tuple(out_tokens), tuple(parents), tuple(depths))


def walk(tree: Tree, draw: Callable[[int], int]) -> tuple[list[int], int]:
    """Follow the target's draws from the root as far as the tree has them.

    `draw(node)` is the target's token behind that node, by its own rule: the largest logit, or an
    independent sample. Returns the accepted nodes, root first, and the bonus token, the first draw
    that the tree does not hold. Each emitted token is thus a true draw in its true context, so the
    output is distributed as without a drafter. Only nodes on the way are drawn at: the draws are
    independent, so this is the same as drawing at all nodes first.
    """
    first_child, next_sibling = tree.links()
    path = [0]
    while True:
        token = draw(path[-1])
        child = first_child[path[-1]]
        while child >= 0 and tree.tokens[child] != token:
            child = next_sibling[child]
        if child < 0:
            return path, token
        path.append(child)
