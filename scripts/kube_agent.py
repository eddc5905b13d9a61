"""The agents of a cluster, deploy/kubernetes/agent.yaml, from unidle.engine.kube.agent_manifest.

python scripts/kube_agent.py            fails where the file is not what the code gives
python scripts/kube_agent.py --write    writes it again
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

import yaml

from unidle.engine.kube.agent_manifest import ALWAYS, PROFILER, AgentSettings, agent_objects

FILE: Final = Path(__file__).resolve().parent.parent / "deploy" / "kubernetes" / "agent.yaml"
HEAD: Final = """\
# Made by scripts/kube_agent.py from unidle.engine.kube.agent_manifest: change that.
#
# Before: the namespace, and the ConfigMap unidle-hub with `address` (HOST:PORT) and `authority` (PEM). See docs/how-to/kubernetes.md.
#
# Privileges, and what each is for:
#   hostPID: ranks are processes of other pods
#   hostPath {pods}: read only: which process is which rank
"""


def text() -> str:
    """The file."""
    head = HEAD.replace("{pods}", "/var/lib/kubelet/pods")
    for name, use in ALWAYS.items():
        head += f"#   {name}: {use}\n"
    head += "# Without these there are no profiles, and all else works:\n"
    for name, use in PROFILER.items():
        head += f"#   {name}: {use}\n"
    return head + "---\n" + yaml.safe_dump_all(agent_objects(AgentSettings()), sort_keys=False, width=120)


def main() -> int:
    if sys.argv[1:] == ["--write"]:
        FILE.write_text(text())
        return 0
    if FILE.exists() and FILE.read_text() == text():
        return 0
    print(f"{FILE} is not what the code gives; run python scripts/kube_agent.py --write", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
