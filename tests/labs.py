"""Fleets whose nodes are the network namespaces of a lab."""

from __future__ import annotations

from unidle.drill.lab import Lab


def fleet_text(lab: Lab, devices: int) -> str:
    """A fleet file of the lab's nodes, each with so many CPU devices."""
    lines = [
        f"  - {{id: {name}, devices: {{count: {devices}, kind: cpu}}, address: {lab.address(name)}, netns: {lab.space(name)}}}"
        for name in lab.names
    ]
    return "\n".join(["nodes:", *lines, ""])
