"""Random token trees, as drafting builds them, kept as plain objects for comparison in tests."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st


@dataclass
class Node:
    """A node of a token tree; `number` is its index in the verified tree, 0 for the root."""

    number: int
    parent: Node | None
    children: list[Node] = field(default_factory=list)

    def ancestors(self) -> list[Node]:
        """Return this node, its parent, and so on up to the root."""
        return [self] + ([] if self.parent is None else self.parent.ancestors())


@dataclass(frozen=True)
class Drafted:
    """One request's tree, and the candidate ids that SGLang uses for it."""

    nodes: list[Node]
    selected: list[int]
    parent_list: list[int]


@st.composite
def drafted_trees(draw: st.DrawFn, topk: int, depth: int, size: int) -> Drafted:
    """Draft `depth` levels keeping `topk` branches, then select `size` - 1 candidates, parents before children."""
    parent_of: dict[int, int] = {}  # candidate id -> candidate id of its parent, -1 for the root
    frontier = [-1]
    parent_list = [-1]
    for level in range(depth):
        # the root and every later parent have topk children
        made = [len(parent_of) + i for i in range(len(frontier) * topk)]
        parent_of |= {child: frontier[i // topk] for i, child in enumerate(made)}
        if level < depth - 1:
            order = made if level == 0 else draw(st.permutations(made))
            frontier = list(order[:topk])
            parent_list += frontier
    chosen: list[int] = []
    while len(chosen) < size - 1:
        open_ids = [c for c, p in parent_of.items() if c not in chosen and (p == -1 or p in chosen)]
        chosen.append(draw(st.sampled_from(open_ids)))
    by_id = {-1: Node(0, None)}
    for number, candidate in enumerate(sorted(chosen), start=1):
        parent = by_id[parent_of[candidate]]
        by_id[candidate] = Node(number, parent)
        parent.children.append(by_id[candidate])
    return Drafted(list(by_id.values()), sorted(chosen), parent_list)


@st.composite
def tree_batches(draw: st.DrawFn) -> tuple[list[Drafted], int, int]:
    """Draw up to four trees of the same size; return (trees, topk, depth)."""
    topk, depth = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    most = 1 + topk + (depth - 1) * topk * topk
    size = depth + 1 if topk == 1 else draw(st.integers(2, min(most, 12)))
    count = draw(st.integers(1, 4))
    return [draw(drafted_trees(topk, depth, size)) for _ in range(count)], topk, depth


def links(trees: list[Drafted]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return flat node numbers, first children and next siblings [bs, n] of the trees, with -1 for none."""
    n = len(trees[0].nodes)
    index = torch.arange(len(trees) * n).view(-1, n)
    child = torch.full_like(index, -1)
    sibling = torch.full_like(index, -1)
    for row, tree in enumerate(trees):
        for node in tree.nodes:
            if node.children:
                child[row, node.number] = node.children[0].number
            for left, right in zip(node.children, node.children[1:], strict=False):
                sibling[row, left.number] = right.number
    return index, child, sibling
