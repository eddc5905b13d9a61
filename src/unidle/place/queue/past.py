"""What queues used before, from the view into the shares that are compared."""

from __future__ import annotations

from unidle.fleet import Fleet
from unidle.place.queue.fair import PPB, PPM, Fairness, Shares
from unidle.view.state import View


def fairness_of(fleet: Fleet) -> Fairness:
    """How the past counts in this fleet; jobs of every level may borrow."""
    return Fairness(fleet.history.half_life_ns, fleet.history.weight_ppm, firm_borrows=True)


def take_history(shares: Shares, view: View, now_ns: int) -> None:
    """Each queue's history: the dominant share of what it used on average, of its leaves together."""
    tree, capacity = shares.tree, shares.quota.capacity
    half_life_ns = view.fleet.history.half_life_ns
    past = [[0] * len(tree.resources) for _ in range(len(tree))]
    for name, use in view.usage.queues.items():
        leaf = tree.index.get(name) if view.fleet.queues else 1  # the one that all jobs are in
        if leaf is None:
            continue  # of another fleet file
        for resource, average in use.average_ppb(now_ns, half_life_ns).items():
            if average and resource in tree.resources:
                at = tree.resources.index(resource)
                for queue in tree.path(leaf):
                    past[queue][at] += average
    for queue in range(1, len(tree)):
        # billionths of a device over thousandths of devices
        parts = [a * (PPB // PPM) // whole for a, whole in zip(past[queue], capacity, strict=True) if whole]
        shares.set_history(queue, max(parts, default=0))
