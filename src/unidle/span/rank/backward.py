"""A backward pass in two parts: the gradient of the input now, those of the weights later.

The zero-bubble schedules (Qi et al., arXiv 2401.10241) need it for any module. Autograd's graph is divided by what each node
reaches: nodes on the way to the input run first, and what arrives at those that also lead to weights is kept; later each of
them runs again for its weights alone. Every gradient comes from the same kernels on the same values in the same order as in
one pass, so it is equal bit for bit. Public autograd API only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, Node, get_gradient_edge

Gradients = list[Tensor | None]
_OPAQUE = "CheckpointFunctionBackward"  # runs a graph of its own that cannot be divided


def joined(
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    inputs: Sequence[Tensor],
    weights: Sequence[nn.Parameter],
) -> tuple[Gradients, Gradients]:
    """The gradients of inputs and weights in one pass; None for what no output depends on."""
    for tensor in (*inputs, *weights):
        tensor.grad = None
    roots = [(o, g) for o, g in zip(outputs, gradients, strict=True) if o.requires_grad]
    if roots:
        torch.autograd.backward([o for o, _ in roots], [g for _, g in roots])
    found: list[Gradients] = [[tensor.grad for tensor in group] for group in (inputs, weights)]
    for tensor in (*inputs, *weights):
        tensor.grad = None
    return found[0], found[1]


def split(
    outputs: Sequence[Tensor],
    gradients: Sequence[Tensor | None],
    targets: Sequence[Tensor | GradientEdge],
    weights: Sequence[nn.Parameter],
) -> tuple[Gradients, Callable[[], Gradients]] | None:
    """The gradients at ``targets`` (inputs, or edges further on), and a function that gives those of the weights.

    None where the graph cannot be divided: use :func:`joined`.
    """
    roots = [
        (get_gradient_edge(o), torch.ones_like(o) if g is None else g)
        for o, g in zip(outputs, gradients, strict=True)
        if o.requires_grad
    ]
    edges = [t if isinstance(t, GradientEdge) else get_gradient_edge(t) for t in targets]
    graph = _Graph([edge.node for edge, _ in roots], {edge.node for edge in edges}, weights)
    if graph.opaque:
        return None
    kept: dict[Node, list[Tensor | None]] = {}
    hooks = [node.register_prehook(_keeper(kept, node)) for node in graph.borders if node not in graph.ends]
    try:
        reaching = [(edge, g) for edge, g in roots if edge.node in graph.inside]
        found: Gradients = [None] * len(edges)
        if reaching and edges:
            found = list(
                torch.autograd.grad(
                    [edge for edge, _ in reaching], edges, [g for _, g in reaching],
                    retain_graph=True, allow_unused=True,
                )
            )  # fmt: skip
    finally:
        for hook in hooks:
            hook.remove()
    for edge, gradient in zip(edges, found, strict=True):
        if edge.node in graph.borders and gradient is not None:
            _put(kept, edge, gradient)
    for edge, gradient in roots:
        if edge.node not in graph.inside:
            _put(kept, edge, gradient)
    return found, lambda: graph.weights(kept)


def _keeper(kept: dict[Node, list[Tensor | None]], node: Node) -> Callable[..., None]:
    def keep(gradients: tuple[Tensor | None, ...]) -> None:
        kept[node] = list(gradients)

    return keep


def _put(kept: dict[Node, list[Tensor | None]], edge: GradientEdge, gradient: Tensor) -> None:
    at = kept.setdefault(edge.node, [])
    at.extend([None] * (edge.output_nr + 1 - len(at)))
    before = at[edge.output_nr]
    at[edge.output_nr] = gradient if before is None else before + gradient


class _Graph:
    """What lies between outputs and weights. ``inside``: nodes on the way to a target; ``borders``: those of them (and
    roots next to them) from which weights are reached otherwise."""

    def __init__(self, roots: Sequence[Node], ends: set[Node], weights: Sequence[nn.Parameter]) -> None:
        self.ends, self._count = ends, len(weights)
        self._weights = {get_gradient_edge(weight).node: k for k, weight in enumerate(weights)}
        self.inside: set[Node] = set()
        self._below: dict[Node, set[Node]] = {}  # outside nodes next to a border
        self.opaque = False
        useful = self._walk(roots)
        self.borders = {node: None for node in self.inside if self._outside(node, useful)}
        self._loose = [root for root in roots if root not in self.inside and root in useful]
        self._groups = self._group(useful)

    def _walk(self, roots: Sequence[Node]) -> set[Node]:
        """Fill ``inside``; the nodes that reach weights."""
        useful: set[Node] = set()
        done: set[Node] = set()
        stack = [(root, False) for root in roots]
        while stack:
            node, after = stack.pop()
            if not after:
                if node in done:
                    continue
                done.add(node)
                self.opaque |= _OPAQUE in node.name()
                stack.append((node, True))
                stack += [(below, False) for below, _ in node.next_functions if below is not None]
                continue
            below_all = [below for below, _ in node.next_functions if below is not None]
            if node in self.ends or any(below in self.inside for below in below_all):
                self.inside.add(node)
            if node in self._weights or any(below in useful for below in below_all):
                useful.add(node)
        return useful

    def _outside(self, node: Node, useful: set[Node]) -> list[Node]:
        return [
            below
            for below, _ in node.next_functions
            if below is not None and below in useful and (below not in self.inside)
        ]

    def _group(self, useful: set[Node]) -> list[tuple[list[Node], list[Node]]]:
        """Borders and weights that belong together: no weight is in two groups."""
        leader: dict[Node, Node] = {}

        def find(node: Node) -> Node:
            leader.setdefault(node, node)
            while leader[node] is not node:
                leader[node] = leader[leader[node]]
                node = leader[node]
            return node

        starts = [*self.borders, *self._loose]
        for start in starts:
            stack, seen = [start], {start}
            while stack:
                node = stack.pop()
                for below in self._outside(node, useful):
                    if below in leader:
                        leader[find(below)] = find(start)
                        continue
                    leader[find(below)] = find(start)
                    if below not in seen:
                        seen.add(below)
                        stack.append(below)
        groups: dict[Node, tuple[list[Node], list[Node]]] = {}
        for start in starts:
            groups.setdefault(find(start), ([], []))[0].append(start)
        for weight in self._weights:
            if weight in leader or weight in self._loose:
                groups[find(weight)][1].append(weight)
        return [group for group in groups.values() if group[1]]

    def weights(self, kept: dict[Node, list[Tensor | None]]) -> Gradients:
        """Run the borders again for their weights; frees the graph."""
        found: Gradients = [None] * self._count
        for borders, weights in self._groups:
            starts = [
                (GradientEdge(node, k), gradient)
                for node in borders
                for k, gradient in enumerate(kept.get(node, ()))
                if gradient is not None
            ]
            if not starts:
                continue
            hooks = [
                node.register_prehook(_clamp(kept[node]))
                for node in borders
                if len(borders) > 1 and node in kept
            ]
            try:
                gradients = torch.autograd.grad(
                    [edge for edge, _ in starts], [GradientEdge(weight, 0) for weight in weights],
                    [gradient for _, gradient in starts], retain_graph=True, allow_unused=True,
                )  # fmt: skip
            finally:
                for hook in hooks:
                    hook.remove()
            for weight, gradient in zip(weights, gradients, strict=True):
                found[self._weights[weight]] = gradient
        self._groups, self.borders, self._weights, self.inside, self._loose = [], {}, {}, set(), []
        self.ends = set()
        return found


def _clamp(kept: list[Tensor | None]) -> Callable[..., Any]:
    """What came to a node in the first pass is all that it gets, whatever other borders would add again."""

    def hook(gradients: tuple[Tensor | None, ...]) -> tuple[Tensor | None, ...]:
        return (*kept, *gradients[len(kept) :])

    return hook
