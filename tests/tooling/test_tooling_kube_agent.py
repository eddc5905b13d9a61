"""The manifest of the agents is what the code gives, and has a reason for each privilege."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import yaml

from unidle.engine.kube.agent_manifest import ALWAYS, PROFILER, AgentSettings, agent_objects, rights_of

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deploy" / "kubernetes" / "agent.yaml"


def test_the_file_is_what_the_code_gives() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "kube_agent.py"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert list(yaml.safe_load_all(FILE.read_text())) == agent_objects(AgentSettings())


def test_each_capability_has_its_reason_in_the_file() -> None:
    text = FILE.read_text()
    for name, use in (ALWAYS | PROFILER).items():
        assert f"#   {name}: {use}" in text


def test_the_rights_of_the_profiler_can_be_left_out() -> None:
    *_, daemon = agent_objects(AgentSettings(profile=False))
    [container] = daemon["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": list(ALWAYS)}
    assert set(rights_of(AgentSettings())) - set(rights_of(AgentSettings(profile=False))) == set(PROFILER)
    assert "privileged" not in FILE.read_text()
