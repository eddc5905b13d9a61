"""The probe over real links: network namespaces as nodes, bridges as leaves, rates set by the kernel."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import needs
from e2e.commands import unidle
from unidle.files.fleet import load_fleet
from unidle.fleet.network import network_of
from unidle.fleet.probing import phases

FLEET = """
tiers:
  - {id: top, kind: site}
  - {id: "leaf[1-2]", kind: leaf, parent: top}
nodes:
  - {id: "a[1-2]", parent: leaf1, devices: {count: 1, kind: cpu}}
  - {id: "b[1-2]", parent: leaf2, devices: {count: 1, kind: cpu}}
"""
NODE_MBIT, LEAF_MBIT = 80, 60


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


def shaped(name: str, mbit: int, netns: str | None = None) -> None:
    inside = ["ip", "netns", "exec", netns] if netns else []
    tbf = [
        "tc",
        "qdisc",
        "add",
        "dev",
        name,
        "root",
        "tbf",
        "rate",
        f"{mbit}mbit",
        "burst",
        "32kb",
        "latency",
        "100ms",
    ]
    subprocess.run([*inside, *tbf], check=True, capture_output=True)


@contextmanager
def two_leaves(tag: str) -> Iterator[dict[str, str]]:
    """Four namespaces behind two bridges that one slow link joins; the address of each node."""
    nodes = {"a1": 1, "a2": 1, "b1": 2, "b2": 2}
    made: list[tuple[str, ...]] = []
    try:
        for leaf in (1, 2):
            ip("link", "add", f"{tag}l{leaf}", "type", "bridge")
            made.append(("link", "del", f"{tag}l{leaf}"))
            ip("link", "set", f"{tag}l{leaf}", "up")
        ip("link", "add", f"{tag}x", "type", "veth", "peer", "name", f"{tag}y")
        made.append(("link", "del", f"{tag}x"))
        for end, leaf in ((f"{tag}x", 1), (f"{tag}y", 2)):
            ip("link", "set", end, "master", f"{tag}l{leaf}", "up")
            shaped(end, LEAF_MBIT)
        for k, (node, leaf) in enumerate(nodes.items(), 1):
            ip("netns", "add", f"{tag}{node}")
            made.append(("netns", "del", f"{tag}{node}"))
            ip("link", "add", f"{tag}o{k}", "type", "veth", "peer", "name", "eth0", "netns", f"{tag}{node}")
            ip("link", "set", f"{tag}o{k}", "master", f"{tag}l{leaf}", "up")
            shaped(f"{tag}o{k}", NODE_MBIT)
            ip("-n", f"{tag}{node}", "addr", "add", f"10.231.7.{k}/24", "dev", "eth0")
            ip("-n", f"{tag}{node}", "link", "set", "eth0", "up")
            ip("-n", f"{tag}{node}", "link", "set", "lo", "up")
            shaped("eth0", NODE_MBIT, f"{tag}{node}")
        yield {node: f"10.231.7.{k}" for k, node in enumerate(nodes, 1)}
    finally:
        for words in reversed(made):
            subprocess.run(["ip", *words], check=False, capture_output=True)


def ranks(
    plan: Path, out: Path, nodes: list[str], leader: str, prefix: str | None, *more: str
) -> list[subprocess.Popen[str]]:
    env = {**os.environ, "WORLD_SIZE": str(len(nodes)), "MASTER_ADDR": leader, "MASTER_PORT": "29871"}
    return [
        subprocess.Popen(
            [*(["ip", "netns", "exec", f"{prefix}{node}"] if prefix else []), sys.executable, "-m", "unidle.rank.probe",
             str(plan), "--out", str(out), "--node", node, *more],
            env={**env, "RANK": str(rank)}, stderr=subprocess.PIPE, text=True,
        )
        for rank, node in enumerate(nodes)
    ]  # fmt: skip


@pytest.mark.slow
@needs.root
@needs.shaping
@needs.own_mounts
def test_the_probe_finds_the_rates_of_nodes_and_of_the_link_between_leaves(tmp_path: Path) -> None:
    fleet, plan, out = tmp_path / "fleet.yaml", tmp_path / "plan.json", tmp_path / "result.json"
    fleet.write_text(FLEET)
    done = unidle("fleet", "probe", "plan", "--fleet", fleet)
    assert done.returncode == 0, done.stderr
    plan.write_text(done.stdout)
    tag = f"up{os.getpid() % 10_000}"
    with two_leaves(tag) as addresses:
        started = ranks(plan, out, list(addresses), addresses["a1"], tag, "--seconds", "2", "--streams", "2")
        ended = [(process.communicate(timeout=120)[1], process.returncode) for process in started]
        assert [code for _, code in ended] == [0] * 4, ended
    done = unidle("fleet", "probe", "links", out, "--fleet", fleet)
    assert done.returncode == 0, done.stderr
    measured = tmp_path / "measured.yaml"
    measured.write_text(done.stdout)
    network = network_of(load_fleet(measured))
    for node in ("a1", "a2", "b1", "b2"):
        up = network.up[node]
        assert up.how == "declared"
        assert up.bps["ethernet"] == pytest.approx(NODE_MBIT * 1e6, rel=0.25)
    for leaf in ("leaf1", "leaf2"):
        assert network.up[leaf].bps["ethernet"] == pytest.approx(LEAF_MBIT * 1e6, rel=0.25)


def test_a_node_without_a_rank_and_two_ranks_on_one_node_are_one_clear_error(tmp_path: Path) -> None:
    fleet, plan, out = tmp_path / "fleet.yaml", tmp_path / "plan.json", tmp_path / "result.json"
    fleet.write_text(FLEET)
    plan.write_text(unidle("fleet", "probe", "plan", "--fleet", fleet).stdout)
    for nodes, says in ((["a1", "a2", "b1", "c9"], "no rank is on node b2"), (["a1", "a1"], "two ranks")):
        started = ranks(plan, out, nodes, "127.0.0.1", None)
        ended = [(process.communicate(timeout=60)[1], process.returncode) for process in started]
        assert ended[0][1] == 1
        assert says in ended[0][0]
        assert ended[0][0].count("\n") == 1
    assert not out.exists()


def test_a_result_of_another_fleet_is_refused(tmp_path: Path) -> None:
    fleet, out = tmp_path / "fleet.yaml", tmp_path / "result.json"
    fleet.write_text(FLEET)
    good = {"format": "unidle-probe", "version": 1, "phases": [{"kind": "node", "flows": [["a1", "a2", "a1", "a2"]], "measured": [[1e6, 5]]}]}  # fmt: skip
    bad = [
        ("{", "cannot be read"),
        (json.dumps({**good, "version": 2}), "of this version"),
        (json.dumps(good).replace("a2", "z"), "not in the fleet file"),
        (json.dumps(good).replace("[[1000000.0, 5]]", "[]"), "lost measurements"),
        (json.dumps(good).replace("1000000.0", "-1"), "no rate"),
    ]
    for text, says in bad:
        out.write_text(text)
        done = unidle("fleet", "probe", "links", out, "--fleet", fleet)
        assert (done.returncode, says in done.stderr, done.stdout) == (2, True, "")


def test_the_plan_tries_every_way_up_and_its_length_does_not_grow_with_the_fleet(tmp_path: Path) -> None:
    sizes = []
    for leaves, nodes in ((2, 2), (8, 16)):
        text = "tiers:\n  - {id: top, kind: spine}\n"
        text += f'  - {{id: "leaf[1-{leaves}]", kind: leaf, parent: top}}\nnodes:\n'
        for leaf in range(1, leaves + 1):
            text += (
                f'  - {{id: "n{leaf}-[1-{nodes}]", parent: leaf{leaf}, devices: {{count: 1, kind: cpu}}}}\n'
            )
        file = tmp_path / "f.yaml"
        file.write_text(text)
        planned = phases(load_fleet(file))
        sizes.append(len(planned))
        tried = {v for phase in planned for flow in phase.flows for v in (flow.above, flow.beside)}
        assert tried == {n.id for n in load_fleet(file).nodes} | {f"leaf{k}" for k in range(1, leaves + 1)}
        for phase in planned:
            pairs = {(flow.above, flow.beside) for flow in phase.flows}
            assert all(not set(a) & set(b) for a, b in itertools.combinations(pairs, 2))
    assert max(sizes) <= 6
