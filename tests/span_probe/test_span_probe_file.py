"""What was measured is stored in the fleet file, and nothing else in it changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml, load_fleet
from unidle.files.fleet_measured import store_link
from unidle.span.model.fit import FlowRates, fit, link_of

MODEL = fit([40e6, 41e6, 39e6], [FlowRates(1, (3e8, 3.1e8)), FlowRates(4, (1e9, 1.01e9))], seed=1)
HEAD = """# our fleet
nodes:
  - {id: n1, devices: {count: 1, kind: cpu}}  # the first
  - {id: n2, devices: {count: 1, kind: cpu}}
  - {id: n3, devices: {count: 1, kind: cpu}}
"""
LINKS = {
    "none": "",
    "another": "links:\n  - {a: n1, b: n3, gbps: 7}  # kept\n# and this\ncurrency: EUR\n",
    "the same, in a block": "links:\n- a: n2\n  b: n1\n  gbps: 7\n  # inside\n- {a: n1, b: n3, gbps: 7}  # kept\n",
    "a flow": "links: [{a: n1, b: n3, gbps: 7}]  # kept\ncurrency: EUR\n",
    "an empty flow": "links: []\ncurrency: EUR\n",
}


@pytest.mark.parametrize("case", LINKS)
def test_a_measured_link_is_stored_and_comments_are_kept(case: str, tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(HEAD + LINKS[case])
    file.chmod(0o640)
    before = load_fleet(file)
    for _ in range(2):  # again is the same
        store_link(str(file), link_of("n1", "n2", MODEL, 12e-6))
        after = load_fleet(file)
        text = file.read_text()
        assert text.startswith(HEAD)
        assert text.count("# kept") == LINKS[case].count("# kept")
        assert text.count("# and this") == LINKS[case].count("# and this")
        assert [link for link in after.links if "n3" in (link.a, link.b)] == [
            link for link in before.links if "n3" in (link.a, link.b)
        ]
        (link,) = [link for link in after.links if {link.a, link.b} == {"n1", "n2"}]
        assert link.latency_ns == 20_000_000
        assert link.flow_bps == round(MODEL.flow_bps.value)
        assert link.measured is not None
        assert link.measured.loss_ppm == 12
        assert link.measured.bandwidth_bps[0] <= link.bandwidth_bps <= link.measured.bandwidth_bps[1]
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["fleet.yaml"]


def test_the_text_of_a_fleet_keeps_what_was_measured(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(HEAD)
    store_link(str(file), link_of("n1", "n2", MODEL, 0.0))
    written = tmp_path / "again.yaml"
    written.write_text(fleet_to_yaml(load_fleet(file)))
    assert load_fleet(written).links == load_fleet(file).links


@pytest.mark.parametrize(
    ("text", "pair", "says"),
    [
        (HEAD[: HEAD.index("kind: cpu}}\n")], ("n1", "n2"), "fleet.yaml"),
        ("command: [python, train.py]\n", ("n1", "n2"), "command"),
        (HEAD, ("n1", "n9"), "--pair.*n9"),
        (HEAD, ("n1", "n1"), "ends where it starts"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_and_left_as_it_is(
    text: str, pair: tuple[str, str], says: str, tmp_path: Path
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(text)
    with pytest.raises(BadInput, match=says):
        store_link(str(file), link_of(*pair, MODEL, 0.0))
    assert file.read_text() == text


def test_an_interval_that_runs_backwards_is_refused() -> None:
    measured = {"gbps": [2, 1], "latency_us": [1, 2], "flow_gbps": [1, 2]}
    nodes = [{"id": name, "devices": {"count": 1, "kind": "cpu"}} for name in ("n1", "n2")]
    links = [{"a": "n1", "b": "n2", "gbps": 1, "measured": measured}]
    with pytest.raises(BadInput, match="the least is above the most"):
        fleet_from_mapping({"nodes": nodes, "links": links}, "here")
