"""The backward pass of one layer in two, as zero-bubble schedules run it: the gradient of the input, then of the weights.

On the graph of autograd: nodes on the way to the input run first, and what flows into those that also lead to weights
is kept; from there the gradients of weights are computed later. No module has to be changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge

Node = Any  # torch.autograd.graph.Node: its subclasses are made in C++


@dataclass(slots=True)
class Fork:
    """A node on the way to the input that leads to weights, too. ``caught``: what flows into it."""

    node: Node
    weights: list[Tensor]
    caught: tuple[Tensor | None, ...] = ()


@dataclass(slots=True)
class Graph:
    """The graph of one layer. ``weights``: those that it reaches; ``forks``: None where a weight is reached over
    several; ``nodes``: all.
    """

    weights: list[Tensor]
    forks: list[Fork] | None
    nodes: list[Node]


def graph_of(end: Tensor, leaf: Tensor) -> Graph:
    """Walk it from the layer's output to its input and weights."""
    if end.grad_fn is None:
        return Graph([], [], [])
    order = _children_first(end.grad_fn)
    to_leaf: dict[Node, bool] = {}
    below: dict[Node, dict[int, Tensor]] = {}
    weights: dict[int, Tensor] = {}
    for node in order:
        variable = getattr(node, "variable", None)
        nexts = [following for following, _ in node.next_functions if following is not None]
        to_leaf[node] = variable is leaf or any(to_leaf[each] for each in nexts)
        found: dict[int, Tensor] = {}
        if isinstance(variable, Tensor) and variable is not leaf:
            found[id(variable)] = variable
        for each in nexts:
            if not to_leaf[each]:
                found |= below[each]
        below[node] = found
        weights |= found
    forks = [Fork(node, list(below[node].values())) for node in order if to_leaf[node] and below[node]]
    reached = [id(weight) for fork in forks for weight in fork.weights]
    simple = len(set(reached)) == len(reached)
    return Graph(list(weights.values()), forks if simple else None, order)


def _children_first(root: Node) -> list[Node]:
    seen, order, stack = {root}, list[Node](), [(root, iter(_following(root)))]
    while stack:
        node, left = stack[-1]
        for following in left:
            if following not in seen:
                seen.add(following)
                stack.append((following, iter(_following(following))))
                break
        else:
            order.append(node)
            stack.pop()
    return order


def _following(node: Node) -> Iterator[Node]:
    return (each for each, _ in node.next_functions if each is not None)


def input_gradient(end: Tensor, leaf: Tensor, forks: Sequence[Fork], flowing: Tensor | None) -> Tensor | None:
    """The gradient of the input alone; ``flowing``: that of the output. Fills ``caught``."""
    handles = [fork.node.register_prehook(_catch(fork)) for fork in forks]
    try:
        (found,) = torch.autograd.grad(end, [leaf], flowing, retain_graph=True, allow_unused=True)
    finally:
        for handle in handles:
            handle.remove()
    return found


def _catch(fork: Fork) -> Any:
    def hook(flowing: tuple[Tensor | None, ...]) -> None:
        fork.caught = flowing

    return hook


def weight_gradients(forks: Sequence[Fork]) -> Iterator[tuple[Tensor, Tensor]]:
    """Each weight with its gradient, from what was caught."""
    for fork in forks:
        edges = [(GradientEdge(fork.node, k), grad) for k, grad in enumerate(fork.caught) if grad is not None]
        if not edges:
            continue
        found = torch.autograd.grad(
            [edge for edge, _ in edges],
            fork.weights,
            [grad for _, grad in edges],
            retain_graph=True,
            allow_unused=True,
        )
        for weight, grad in zip(fork.weights, found, strict=True):
            if grad is not None:
                yield weight, grad
