"""The installation in one file, deploy/kubernetes/install.yaml, and the chart's copy of the custom resources.

    python scripts/kube_install.py            fails where they are not what chart and types give
    python scripts/kube_install.py --write    writes them again

The file is what `helm template` makes of the chart, with its own values, in the namespace unidle-system. It needs the helm of
`make kube-assets`; without it, only the copy of the custom resources is compared.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from kube_cluster import assets  # noqa: E402
from unidle.errors import CannotRun  # noqa: E402

FOLDER = ROOT / "deploy" / "kubernetes"
CHART: Final = FOLDER / "chart"
INSTALL: Final = FOLDER / "install.yaml"
NAMESPACE: Final = "unidle-system"
HEAD: Final = f"""# Made by scripts/kube_install.py from deploy/kubernetes/chart: change that.
apiVersion: v1
kind: Namespace
metadata:
  name: {NAMESPACE}
  labels:
    # agents see the processes of their node
    pod-security.kubernetes.io/enforce: privileged
"""


def rendered() -> str:
    """Errors: CannotRun without helm."""
    words = [
        assets.helm(),
        "template",
        "unidle",
        str(CHART),
        "--namespace",
        NAMESPACE,
        "--kube-version",
        "1.37.0",
    ]
    return HEAD + subprocess.run(words, check=True, capture_output=True, text=True).stdout


def wanted() -> dict[Path, str]:
    found = {CHART / "crds.yaml": (FOLDER / "crds.yaml").read_text()}
    try:
        found[INSTALL] = rendered()
    except CannotRun as error:
        print(f"{INSTALL.relative_to(ROOT)} is not compared: {error}", file=sys.stderr)
    return found


def main() -> int:
    if "--write" in sys.argv[1:]:
        (CHART / "crds.yaml").write_text((FOLDER / "crds.yaml").read_text())
        INSTALL.write_text(rendered())
        return 0
    wrong = [path for path, text in wanted().items() if not path.exists() or path.read_text() != text]
    for path in wrong:
        print(
            f"{path.relative_to(ROOT)} is not current; run python scripts/kube_install.py --write",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
