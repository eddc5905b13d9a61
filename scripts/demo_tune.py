"""The demo of tune: examples/tune is a small model whose training has slow places. Find them, keep the edits that are proven, refuse a cheat.

    make demo-tune
    make demo-tune ARGS="--minutes 5"

It ends as soon as all is decided: on two quiet cores in under three minutes. Next to other work, more pairs of runs are needed, up to the budget.

Three causes were planted: anomaly detection, a loop over rows, and a mask that is made again for each block. Batches were made from lists of
arrays before.
The cheat comes from a model that is scripted here, and answers as an OpenAI-compatible endpoint does. With UNIDLE_TUNE_URL and
UNIDLE_TUNE_MODEL, your model is asked instead.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CHEAT = {"file": "train.py", "old": "for step in range(STEPS):", "new": "for step in range(STEPS // 2):", "why": "half of the steps are enough"}  # fmt: skip
PLANTED = ("UDL303", "UDL404", "UDL405")
NOT_PLANTED = ("UDL103",)


class ScriptedModel(http.server.BaseHTTPRequestHandler):
    """Proposes a cheat, then nothing."""

    asked = 0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        edits = [] if ScriptedModel.asked else [CHEAT]
        ScriptedModel.asked += 1
        message = {"role": "assistant", "content": json.dumps({"edits": edits})}
        body = json.dumps({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nothing: the demo has its own output."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/demo_tune.py", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, metavar="N", help="budget (default 30)")
    minutes = parser.parse_args().minutes
    place = ROOT / ".cache" / "demo" / time.strftime("tune-%Y%m%d-%H%M%S")
    shutil.copytree(ROOT / "examples" / "tune", place / "tune")
    report = place / "report.html"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), ScriptedModel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"UNIDLE_TUNE_URL": f"http://127.0.0.1:{server.server_port}/v1", "UNIDLE_TUNE_MODEL": "scripted", **os.environ}  # fmt: skip
        begin = time.monotonic()
        done = subprocess.run(
            [Path(sys.executable).with_name("unidle"), "tune", "run", "--minutes", str(minutes), "--rounds", "1", "--report", report, "--json",
             "--", sys.executable, "train.py"],
            cwd=place / "tune", env=env, stdout=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        server.shutdown()
    if done.returncode:
        sys.exit(done.returncode)
    sys.exit(show(json.loads(done.stdout), report, time.monotonic() - begin))


def show(found: dict[str, Any], report: Path, seconds: float) -> int:
    """Print what became of each change; 0 if the demo showed all that it promises."""
    for one in found["tried"]:
        speed = f"{one['speedup']:.2f}x alone (CPU {one['cpu_speedup']:.2f}x), " if one["speedup"] else ""
        print(f"{one['verdict']:>12}  {one.get('code') or one['agent']} {one['file']}:{one['line']}  {speed}{one['why']}")  # fmt: skip
    stack = found["stack"]
    kept = {one.get("code") for one in found["tried"] if one["verdict"] == "kept"}
    refused = any("agent" in one and one["verdict"] == "rejected" for one in found["tried"])
    if stack["speedup"]:
        print(f"together: {stack['speedup']:.2f}x [{stack['low']:.2f}, {stack['high']:.2f}]")
    print(f"in {seconds:.0f} s; {_machine(found['baseline'])}")
    print(f"report: {report.relative_to(Path.cwd()) if report.is_relative_to(Path.cwd()) else report}")
    missing = sorted({*PLANTED, *NOT_PLANTED} - kept)
    if missing:
        more = (
            'next to such work, give it more time by ARGS="--minutes 60", or run it when the machine is quiet'
        )
        print(f"not proven in this time: {', '.join(missing)}; {more}", file=sys.stderr)
    if not refused:
        print("the cheat was not refused", file=sys.stderr)
    return 1 if missing or not refused or not stack["speedup"] else 0


def _machine(baseline: dict[str, Any]) -> str:
    """How busy the machine was with other work, as the programs saw it."""
    control = baseline["control"]
    if control["speedup"] is None:
        return "nothing was measured"
    noise = f"two equal programs differ by {control['low']:.2f} to {control['high']:.2f}x"
    return f"programs waited {baseline['waited_pct']:.0f} % of the measured time for a CPU, and {noise}"


if __name__ == "__main__":
    main()
