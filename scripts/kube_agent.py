"""The agents of a cluster, from unidle.engine.kube.agent_manifest: deploy/kubernetes/agent.yaml and the chart's template.

python scripts/kube_agent.py            fails where the files are not what the code gives
python scripts/kube_agent.py --write    writes them again
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import yaml

from unidle.engine.kube.agent_manifest import ALWAYS, PROFILER, SHARED, AgentSettings, agent_objects

FOLDER: Final = Path(__file__).resolve().parent.parent / "deploy" / "kubernetes"
FILE: Final = FOLDER / "agent.yaml"
TEMPLATE: Final = FOLDER / "chart" / "templates" / "agents.yaml"
HEAD: Final = """\
# Made by scripts/kube_agent.py from unidle.engine.kube.agent_manifest: change that.
#
# The chart has the same. For a controller outside of the cluster: create the namespace, apply this, and start `unidle up` with
# --agent-account unidle/unidle-agent --agent-hub unidle/unidle-hub. See docs/how-to/kubernetes.md.
#
"""
_BLOCKS: Final = {
    "        command: ['@command@']\n": "        command: {{- toYaml .Values.agents.command | nindent 10 }}\n",
    "      tolerations:\n      - operator: Exists\n": "      tolerations: {{- toYaml .Values.agents.tolerations | nindent 6 }}\n",
    "      nodeSelector:\n        kubernetes.io/os: linux\n": "      nodeSelector: {{- toYaml .Values.agents.nodeSelector | nindent 8 }}\n",
    "        - --kernel-log=syslog\n": "        - --kernel-log=syslog\n        {{- with .Values.agents.extraArgs }}\n        {{- toYaml . | nindent 8 }}\n        {{- end }}\n",
    "        securityContext:\n": "        {{- with .Values.agents.env }}\n        {{- toYaml . | nindent 8 }}\n        {{- end }}\n        securityContext:\n",
    "      volumes:\n": "        {{- with .Values.agents.extraVolumeMounts }}\n        {{- toYaml . | nindent 8 }}\n        {{- end }}\n      volumes:\n",
    "      serviceAccountName:": "      {{- with .Values.imagePullSecrets }}\n      imagePullSecrets: {{- toYaml . | nindent 8 }}\n      {{- end }}\n      serviceAccountName:",
}  # fmt: skip
"""What values of the chart take the place of."""
_LABELS: Final = {
    "app.kubernetes.io/name": "unidle-agent",
    "app.kubernetes.io/instance": "{{ .Release.Name }}",
}


def reasons() -> str:
    """What each privilege is for, as comments."""
    head = "# Privileges, and what each is for:\n"
    head += "".join(f"#   {name}: {use}\n" for name, use in (SHARED | ALWAYS).items())
    head += "# Without these there are no profiles, and all else works:\n"
    return head + "".join(f"#   {name}: {use}\n" for name, use in PROFILER.items())


def text() -> str:
    """agent.yaml."""
    return HEAD + reasons() + "---\n" + _dumped(agent_objects(AgentSettings()))


def template() -> str:
    """The chart's, where values take the place of what a site may choose."""
    settings = AgentSettings(
        namespace="{{ .Release.Namespace }}", name="{{ .Release.Name }}-agent", hub="{{ .Release.Name }}-hub",
        labels=_LABELS, image="{{ .Values.image }}", pull="{{ .Values.imagePullPolicy }}", command=("@command@",),
    )  # fmt: skip
    found = _dumped(agent_objects(settings)).replace(
        "command:\n        - '@command@'", "command: ['@command@']"
    )
    for block, value in _BLOCKS.items():
        if found.count(block) != 1:
            raise ValueError(f"{block!r} is {found.count(block)} times in the manifest of agents")
        found = found.replace(block, value)
    rights = "".join(f"            - {name}\n" for name in PROFILER)
    guarded = f"            {{{{- if .Values.agents.profiler }}}}\n{rights}            {{{{- end }}}}\n"
    found = found.replace(rights, guarded)
    volumes = (
        "      {{- with .Values.agents.extraVolumes }}\n      {{- toYaml . | nindent 6 }}\n      {{- end }}\n"
    )
    head = "# Made by scripts/kube_agent.py from unidle.engine.kube.agent_manifest: change that.\n"
    return f"{{{{- if .Values.agents.enabled }}}}\n{head}{reasons()}---\n{found}{volumes}{{{{- end }}}}\n"


def _dumped(objects: list[dict[str, Any]]) -> str:
    return yaml.safe_dump_all(objects, sort_keys=False, width=120)


def main() -> int:
    wanted = {FILE: text(), TEMPLATE: template()}
    if sys.argv[1:] == ["--write"]:
        for path, content in wanted.items():
            path.write_text(content)
        return 0
    wrong = [path for path, content in wanted.items() if not path.exists() or path.read_text() != content]
    for path in wrong:
        print(f"{path} is not what the code gives; run python scripts/kube_agent.py --write", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
