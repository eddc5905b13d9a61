"""What a gang's parallel groups cost on the places that it was given."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unidle.fleet import Fleet, LinkClass
from unidle.fleet.network import CLASSES
from unidle.jobs import Layout, RankPlace
from unidle.place.mapping import Mapping, describe
from unidle.place.traffic import Model, edges_of, tree_chain, usual_traffic
from unidle.place.tree import Ints, Tree, tree_of


def priced(fleet: Fleet, places: Sequence[RankPlace], layout: Layout | None) -> Mapping:
    """The modelled collectives of ranks that are where ``places`` (in rank order) say.

    Without a layout all ranks are one data group. The fabric is the first class that carries all
    traffic between the nodes; where none does, each link counts with its fastest.
    """
    tree = tree_of(fleet)
    position = {name: k for k, name in enumerate(tree.nodes)}
    where = np.array([position[place.node] for place in places], dtype=np.int64)
    nodes, node_of_rank = np.unique(where, return_inverse=True)
    layout = layout or Layout(dp=len(places))
    model = Model(edges_of(tree, nodes, _fabric(tree, nodes)), layout, usual_traffic(layout))
    return describe(tree, nodes, model, node_of_rank.reshape(model.shape()))


def _fabric(tree: Tree, nodes: Ints) -> LinkClass | None:
    if len(nodes) == 1:
        return None
    chains = [tree_chain(tree, int(v)) for v in np.unique(tree.above[nodes])]
    common = next(v for v in chains[0] if all(v in chain for chain in chains))
    depth = int(tree.depth[common])
    return next((c for c in CLASSES if int(tree.reach(c)[nodes].max()) <= depth), None)
