"""The fleet file: what it declares, what it refuses, and the way back to text."""

from __future__ import annotations

import dataclasses
import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml, load_fleet
from unidle.files.load import Bounds
from unidle.files.tree import parse
from unidle.files.values import expand
from unidle.fleet import WHOLE_PPM, Device, Fleet, GpuLinks, Link, Node, Tier
from unidle.fleet.policies import IdlePolicy, IdleTerms, WatchSources

ONE_CPU = "devices: {count: 1, kind: cpu}"


def fleet(tmp_path: Path, text: str) -> Fleet:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(BadInput) as caught:
        fleet(tmp_path, text)
    line = str(caught.value)
    assert line.isprintable()
    assert caught.value.remedy
    return line.removeprefix(str(tmp_path) + "/")


def test_one_machine_stands_for_several_nodes(tmp_path: Path) -> None:
    declared = fleet(tmp_path, 'nodes: [{id: "n[1-2]", devices: {count: 2, kind: cpu}}]')
    assert declared.tiers == (Tier("site", "site"),)
    assert [(n.id, n.parent, n.address) for n in declared.nodes] == [
        ("n1", "site", "127.0.0.1"),
        ("n2", "site", "127.0.0.1"),
    ]
    assert [d.id for d in declared.devices()] == ["n1/0", "n1/1", "n2/0", "n2/1"]
    assert {(d.kind, d.model, d.slices_ppm) for d in declared.devices()} == {("cpu", "cpu", (WHOLE_PPM,))}
    assert declared.source == "declared"


def test_every_field_arrives(tmp_path: Path) -> None:
    text = """
        currency: EUR
        prices: {H100: 2.5}
        tiers:
          - {id: leaf-1, kind: leaf, parent: site-a}
          - {id: site-a, kind: site}
        nodes:
          - id: n1
            parent: leaf-1
            devices:
              - {count: 1, kind: gpu, model: H100, memory: 80GiB, slices_ppm: [750000, 250000], uuid: GPU-1}
              - {count: 1, kind: gpu, index: 5}
            cpus: 8
            memory: 1TiB
            labels: {zone: a}
            address: 10.0.0.1
        links: [{a: n1, b: site-a, gbps: 2.5, latency_us: 0.5}]
    """
    assert fleet(tmp_path, text) == Fleet(
        tiers=(Tier("leaf-1", "leaf", "site-a"), Tier("site-a", "site")),
        nodes=(
            Node(
                id="n1",
                parent="leaf-1",
                devices=(
                    Device("n1/0", "n1", 0, "gpu", "H100", "GPU-1", 80 << 30, (750_000, 250_000)),
                    Device("n1/5", "n1", 5, "gpu"),
                ),
                cpus=8.0,
                memory_bytes=1 << 40,
                labels={"zone": "a"},
                address="10.0.0.1",
            ),
        ),
        links=(Link("n1", "site-a", 2_500_000_000, 500),),
        prices_per_device_hour={"H100": 2.5},
        currency="EUR",
        source="declared",
    )


def test_a_range_of_addresses_runs_along(tmp_path: Path) -> None:
    text = 'nodes: [{id: "n[01-03]", address: "10.0.0.[7-9]", devices: {kind: cpu}}]'
    assert [(n.id, n.address) for n in fleet(tmp_path, text).nodes] == [
        ("n01", "10.0.0.7"),
        ("n02", "10.0.0.8"),
        ("n03", "10.0.0.9"),
    ]


def test_the_only_tier_is_the_parent_that_is_not_named(tmp_path: Path) -> None:
    text = "tiers: [{id: home, kind: site}]\nnodes: [{id: n, devices: {kind: cpu}}]"
    assert fleet(tmp_path, text).nodes[0].parent == "home"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n", ["n"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10]x", ["n08x", "n09x", "n10x"]),
        ("[1,3-4]", ["1", "3", "4"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("n[0]", ["n0"]),
        ("n[1, 2]", ["n1", "n2"]),
    ],
)
def test_ranges_expand(text: str, names: list[str]) -> None:
    assert expand(text, 10) == names


@pytest.mark.parametrize("digits", [9, 10, 13, 4000])
def test_a_range_that_is_too_long_is_told_as_such_however_many_digits_it_has(digits: int) -> None:
    with pytest.raises(ValueError, match="it expands to more than 10 names"):
        expand(f"n[1-{'9' * digits}]", 10)
    assert expand(f"n[1{'0' * (digits - 1)}]", 10) == [f"n1{'0' * (digits - 1)}"]


@pytest.mark.parametrize(
    "text",
    ["n[", "n]", "n[]", "n[a]", "n[2-1]", "n[1-]", "n[[1]]", "n[1-11]", "n[1-4][1-4]", "n[1-9999999999]"],
)
def test_wrong_ranges_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        expand(text, 10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]", "a fleet file must be a mapping"),
        ("tiers: []", "nodes: the field is missing"),
        ("nodes: []", "nodes: must have at least 1 item"),
        ("nodes: [{id: n1}]", "the fleet has no device"),
        ("nodes: [{id: n1, devices: []}]", "the fleet has no device"),
        ("nodes: [{id: n1, devices: 3}]", "nodes[0].devices: must be a mapping, or a list of mappings (got 3)"),
        ("nodes: [{id: n1, devices: {count: -1, kind: cpu}}]", "nodes[0].devices.count: must be a whole number"),
        ("nodes: [{id: n1, devices: {count: 0, kind: cpu}}]", "(got 0)"),
        ("nodes: [{id: n1, devices: {count: 1}}]", "nodes[0].devices.kind: the field is missing"),
        ("nodes: [{id: n1, devices: [{kind: tpu}]}]", "nodes[0].devices[0].kind: must be one of cpu, gpu"),
        ("nodes: [{id: n1, device: {kind: cpu}}]", "nodes[0].device: unknown field; the closest known field is devices"),
        ("nodes: [{id: n1, devices: {kind: cpu, memory: 5000TiB}}]", "must be at most 1 PiB"),
        (f"nodes: [{{id: 'a b', {ONE_CPU}}}]", "nodes[0].id: must be letters"),
        (f"nodes: [{{id: a/b, {ONE_CPU}}}]", "nodes[0].id: must be letters"),
        (f"nodes: [{{id: 'n[2-1]', {ONE_CPU}}}]", "runs backwards"),
        (f"nodes: [{{id: 'n[1-900000]', {ONE_CPU}}}]", "more than 200,000 names"),
        ("nodes: [{id: 'n[1-20000]', devices: {count: 100, kind: cpu}}]", "more than 1,000,000 devices"),
        (f"nodes:\n- {{id: n1, {ONE_CPU}}}\n- {{id: n1, {ONE_CPU}}}", "fleet.yaml:3: nodes[1].id: the name is used twice, first on line 2 (got 'n1')"),
        (f"nodes: [{{id: site, {ONE_CPU}}}]", "the name is used twice"),
        (f"tiers: [{{id: a, kind: x}}, {{id: a, kind: y}}]\nnodes: [{{id: n1, {ONE_CPU}}}]", "tiers[1].id: the name is used twice"),
        (f"tiers: [{{id: n1, kind: x}}]\nnodes: [{{id: n1, {ONE_CPU}}}]", "nodes[0].id: the name is used twice"),
        ("nodes: [{id: n1, devices: [{count: 2, kind: cpu}, {kind: cpu, index: 1}]}]", "the device is used twice (got 'n1/1')"),
        ("nodes: [{id: n1, devices: [{kind: gpu, uuid: x}, {kind: gpu, uuid: x}]}]", "the uuid is used twice (got 'x')"),
        ("nodes: [{id: n1, devices: {count: 2, kind: gpu, uuid: x}}]", "one identity for several devices"),
        ("nodes: [{id: n1, devices: {kind: gpu, slices_ppm: [1, 2]}}]", "the shares sum to 3, not to 1,000,000"),
        ("nodes: [{id: n1, devices: {kind: gpu, slices_ppm: [-1, 1000001]}}]", "slices_ppm[0]: must be"),
        ("nodes: [{id: n1, devices: {kind: gpu, vendor: amd, share: {modes: [mps]}}}]", "share.modes[0]: a GPU of amd cannot be cut so (got 'mps'); use time"),
        ("nodes: [{id: n1, devices: {kind: cpu, share: {modes: [mig]}}}]", "share.modes[0]: a CPU device cannot be cut so (got 'mig'); use quota"),
        ("nodes:\n- {id: n1, devices: {kind: gpu, model: Tesla V100-SXM2-32GB, memory: 32GiB, share: {modes: [mps, mig]}}}", "fleet.yaml:2: nodes[0].devices.share.modes[1]: MIG cannot cut a Tesla V100-SXM2-32GB (got 'mig'); leave mig out; it cuts A30"),
        ("nodes: [{id: n1, devices: {kind: gpu, share: {modes: [mig]}}}]", "share.modes[0]: MIG cuts GPUs of known models only (got 'mig'); state the model: A30"),
        ("nodes: [{id: n1, devices: {kind: gpu, model: A100, share: {modes: [mig]}}}]", "its name and memory fit several models of A100 (got 'mig'); state its memory as one of A100"),
        (f"tiers: [{{id: a, kind: node}}]\nnodes: [{{id: n1, {ONE_CPU}}}]", "tiers[0].kind: is a reserved name of the lowest tier or of the whole fleet (got 'node')"),
        (f"tiers: [{{id: a, kind: fleet}}]\nnodes: [{{id: n1, {ONE_CPU}}}]", "tiers[0].kind: is a reserved name of the lowest tier or of the whole fleet (got 'fleet')"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nqueues:\n- {{name: a, kind: exclusive, lend: {{cpu: 1}}}}", "fleet.yaml:3: queues[0].lend: an exclusive queue does not lend; leave lend out"),
        (f"nodes: [{{id: n1, parent: sitt, {ONE_CPU}}}]", "there is no such tier (got 'sitt'); the closest is site"),
        (f"tiers: [{{id: a, kind: x}}, {{id: b, kind: x}}]\nnodes: [{{id: n1, {ONE_CPU}}}]", "nodes[0].parent: the field is missing"),
        (f"tiers: [{{id: abc, kind: x, parent: abd}}]\nnodes: [{{id: n1, {ONE_CPU}}}]", "tiers[0].parent: there is no such tier (got 'abd'); the closest is abc"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nlinks: [{{a: n1, b: n2, gbps: 1}}]", "links[0].b: there is no such tier or node (got 'n2'); the closest is n1"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nlinks: [{{a: n1, b: n1, gbps: 1}}]", "the link ends where it starts"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nlinks: [{{a: n1, b: site, gbps: 1e-10}}]", "less than 1 bit/s"),
        (f"nodes: [{{id: 'n[1-3]', address: '10.0.0.[1-2]', {ONE_CPU}}}]", "2 members for 3 nodes"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nprices: {{H100: -1}}", "prices.H100: must be a number from 0"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nfiller_price: -1", "filler_price: must be a number from 0"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\nprices: {{H100: .inf}}", "prices.H100: must be a finite number"),
        (f"nodes: [{{id: n1, {ONE_CPU}}}]\ncurrency: euro", "currency: must be three capital letters"),
        (f"nodes: [{{id: n1, labels: {{a: 1}}, {ONE_CPU}}}]", "nodes[0].labels.a: must be one line of printable text (got 1); put it in quotes"),
    ],
)  # fmt: skip
def test_a_wrong_fleet_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(tmp_path, text)


def test_a_cycle_is_named(tmp_path: Path) -> None:
    text = """
        tiers:
          - {id: root, kind: site}
          - {id: a, kind: x, parent: c}
          - {id: b, kind: x, parent: a}
          - {id: c, kind: x, parent: b}
        nodes: [{id: n1, parent: root, devices: {kind: cpu}}]
    """
    assert "fleet.yaml:4: tiers[1].parent: the tiers form a cycle: a -> c -> b -> a" in refused(
        tmp_path, text
    )


def test_a_tier_that_is_its_own_parent_is_a_cycle(tmp_path: Path) -> None:
    text = "tiers: [{id: a, kind: x, parent: a}]\nnodes: [{id: n1, devices: {kind: cpu}}]"
    assert "the tiers form a cycle: a -> a" in refused(tmp_path, text)


def test_a_long_chain_of_tiers_is_no_cycle() -> None:
    tiers = [
        {"id": "t0", "kind": "x"},
        *({"id": f"t{n}", "kind": "x", "parent": f"t{n - 1}"} for n in range(1, 5000)),
    ]
    nodes = [{"id": "n", "parent": "t4999", "devices": {"kind": "cpu"}}]
    assert len(fleet_from_mapping({"tiers": tiers, "nodes": nodes}, "test").tiers) == 5000


def test_a_large_fleet_is_fine() -> None:
    data = {"nodes": [{"id": "n[1-20000]", "devices": {"count": 8, "kind": "gpu"}}]}
    assert len(fleet_from_mapping(data, "test").devices()) == 160_000


names = st.from_regex(r"\A[A-Za-z0-9]([-A-Za-z0-9._]{0,8}[A-Za-z0-9])?\Z")
# Words that YAML could take for something else are the interesting ones.
texts = st.sampled_from(["1e3", "0o17", "1:30", "yes", "null", "~", "", " a", "#x", "é", "a: b", "😀", "0x1F", "2020-01-01"]) | (
    st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" "), max_size=12)
)  # fmt: skip


@st.composite
def shares(draw: st.DrawFn) -> tuple[int, ...]:
    cuts = draw(st.sets(st.integers(1, WHOLE_PPM - 1), max_size=3))
    edges = [0, *sorted(cuts), WHOLE_PPM]
    return tuple(b - a for a, b in itertools.pairwise(edges))


@st.composite
def links_of(draw: st.DrawFn, gpus: tuple[int, ...]) -> GpuLinks:
    words = st.sampled_from(["NV18", "XGMI", "XGMI4", "HCCS", "SIO", "PIX", "SYS", "NA"])
    ways = [["X"] * len(gpus) for _ in gpus]
    for a, b in itertools.combinations(range(len(gpus)), 2):
        ways[a][b] = ways[b][a] = draw(words)
    return GpuLinks(
        gpus,
        tuple(map(tuple, ways)),
        tuple(draw(st.sampled_from([0, 1, None])) for _ in gpus) if draw(st.booleans()) else (),
        tuple(draw(st.sampled_from(["", "0-31", "32-63,96-127"])) for _ in gpus)
        if draw(st.booleans())
        else (),
        {name: tuple(draw(words) for _ in gpus) for name in draw(st.lists(names, max_size=2, unique=True))},
    )


@st.composite
def fleets(draw: st.DrawFn) -> Fleet:
    ids = draw(st.lists(names, min_size=2, max_size=8, unique=True))
    tier_count = draw(st.integers(1, len(ids) - 1))
    tiers = tuple(
        Tier(name, draw(texts) or "site", draw(st.sampled_from([None, *ids[:k]])) if k else None)
        for k, name in enumerate(ids[:tier_count])
    )
    uuids = (f"GPU-{n}{end}" for n, end in enumerate(itertools.repeat(draw(texts))))
    nodes = []
    wired: dict[str, GpuLinks] = {}
    for number, name in enumerate(ids[tier_count:]):
        indexes = draw(st.lists(st.integers(0, 9), unique=True, max_size=4, min_size=0 if number else 1))
        devices = tuple(
            Device(
                id=f"{name}/{index}",
                node=name,
                index=index,
                kind=kind,
                model=draw(texts),
                uuid=next(uuids) if draw(st.booleans()) else "",
                memory_bytes=draw(st.sampled_from([0, 1, 80 << 30, 3 << 20]) | st.integers(0, 1 << 50)),
                slices_ppm=draw(shares()),
                vendor=draw(st.sampled_from(["nvidia", "amd", "ascend"])) if kind == "gpu" else "nvidia",
                number=draw(st.none() | st.integers(10, 12)) if kind == "gpu" else None,
            )
            for index in indexes
            for kind in [draw(st.sampled_from(["gpu", "cpu"]))]
        )
        gpus = tuple(sorted(device.index for device in devices if device.kind == "gpu"))
        if gpus and draw(st.booleans()):
            wired[f"links-{number}"] = draw(links_of(gpus))
        labels = draw(st.dictionaries(names, texts, max_size=2))
        nodes.append(
            Node(
                id=name,
                parent=draw(st.sampled_from(tiers)).id,
                devices=devices,
                cpus=draw(st.floats(0, 1000)),
                memory_bytes=draw(st.integers(0, 1 << 50)),
                labels=labels,
                address=draw(st.sampled_from(["127.0.0.1", "10.0.0.1", "fe80::1%eth0", "host-1", "::1"])),
                gpu_links=f"links-{number}" if f"links-{number}" in wired else "",
            )
        )
    ends = st.lists(st.sampled_from(ids), min_size=2, max_size=2, unique=True)
    links = tuple(
        Link(*draw(ends), draw(st.integers(1, 10**15)), draw(st.integers(0, 10**12)))
        for _ in range(draw(st.integers(0, 2)))
    )
    prices = draw(st.dictionaries(texts, st.floats(0, 1e6), max_size=3))
    idle = draw(idle_policies())
    filler_price = draw(st.none() | st.floats(0, 1e6))
    return Fleet(
        tiers, tuple(nodes), links, prices, "EUR", "declared", gpu_links=wired, idle=idle, peak_tflops={"cpu": 0.1},
        filler_price=filler_price,
    )  # fmt: skip


spans = st.integers(1, 10**6).map(lambda s: s * 10**9) | st.integers(10**9, 10**15)
terms = st.builds(IdleTerms, spans, spans, spans, st.booleans(), st.sampled_from(["end", "requeue"]))


@st.composite
def idle_policies(draw: st.DrawFn) -> IdlePolicy:
    own = draw(st.dictionaries(st.sampled_from("abcd"), terms, max_size=3))
    exempt = tuple(draw(st.lists(st.sampled_from("ef"), unique=True)))
    busy_ppm = draw(st.integers(1, 100)) * 10_000
    return IdlePolicy(draw(terms), busy_ppm, exempt, tuple(draw(st.lists(st.sampled_from("ag"))))[:1], own)


@settings(max_examples=80, deadline=None)
@given(declared=fleets())
def test_a_fleet_survives_the_way_through_text(declared: Fleet) -> None:
    document = parse(fleet_to_yaml(declared), "fleet.yaml", "fleet", Bounds())
    assert isinstance(document.data, dict)
    assert fleet_from_mapping(document.data, "fleet.yaml") == declared


def test_a_fleet_without_tiers_gets_its_site(tmp_path: Path) -> None:
    bare = Fleet(nodes=(Node("n", "", (Device("n/0", "n", 0, "cpu", "cpu"),)),))
    again = fleet(tmp_path, fleet_to_yaml(bare))
    assert again.nodes == (dataclasses.replace(bare.nodes[0], parent="site"),)


def test_where_a_nodes_faults_are_read_runs_along_with_its_range(tmp_path):
    path = tmp_path / "fleet.yaml"
    path.write_text(
        "nodes:\n- id: n[1-2]\n  devices: {count: 2, kind: gpu}\n"
        "  watch: {kernel_log: 'logs/n[1-2].log', pci: [0000:12:00.0], nvml: drill.json}\n"
        "- {id: m, devices: {kind: cpu}, watch: {kernel_log: kmsg}}\n- {id: o, devices: {kind: cpu}}\n"
    )
    fleet = load_fleet(path)
    watches = [node.watch for node in fleet.nodes]
    assert watches == [
        WatchSources(f"{tmp_path}/logs/n1.log", ("0000:12:00.0",), f"{tmp_path}/drill.json"),
        WatchSources(f"{tmp_path}/logs/n2.log", ("0000:12:00.0",), f"{tmp_path}/drill.json"),
        WatchSources("kmsg"),
        None,
    ]
    again = tmp_path / "again.yaml"
    again.write_text(fleet_to_yaml(fleet))
    assert [node.watch for node in load_fleet(again).nodes] == watches


def test_fillers_may_cost_nothing_and_that_is_not_forgotten() -> None:
    fleet = fleet_from_mapping(
        {"nodes": [{"id": "n1", "devices": {"count": 1, "kind": "cpu"}}], "filler_price": 0}, "fleet"
    )
    assert fleet.filler_price == 0 and "filler_price: 0" in fleet_to_yaml(fleet)
