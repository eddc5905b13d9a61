"""The section ``order`` of a fleet file, and the order of a queue."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.files.fleet import load_fleet
from unidle.files.fleet_text import fleet_to_yaml
from unidle.fleet.queues import USUAL_ORDER, QueueOrder

NODES = "nodes: [{id: n0, devices: [{kind: gpu, count: 2}]}]\n"


def test_the_order_is_read_and_written_again(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(NODES + "order: {by: fair, bound: 90m}\nqueues: [{name: a, order: fifo}, {name: b}]\n")
    fleet = load_fleet(file)
    assert fleet.order == QueueOrder("fair", 5_400_000_000_000)
    assert [queue.order for queue in fleet.queues] == ["fifo", None]
    file.write_text(fleet_to_yaml(fleet))
    assert (load_fleet(file).order, load_fleet(file).queues) == (fleet.order, fleet.queues)


def test_without_it_the_usual_order_counts(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(NODES)
    assert load_fleet(file).order == USUAL_ORDER
    assert "order" not in fleet_to_yaml(load_fleet(file))


@pytest.mark.parametrize("wrong", ["{by: newest}", "{bound: 10s}", "{bound: soon}"])
def test_a_wrong_order_is_refused_with_its_value(tmp_path: Path, wrong: str) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(NODES + f"order: {wrong}\n")
    with pytest.raises(BadInput, match="order"):
        load_fleet(file)
