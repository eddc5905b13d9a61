"""A relay that starts the server behind it and passes connections on, byte by byte: two processes, one service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from scope_serving.relay import Relay


def main() -> None:
    command = [sys.executable, str(Path(__file__).with_name("server.py")), *sys.argv[1:]]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        told = json.loads(server.stdout.readline())
        relay = Relay(told["port"])
        print(json.dumps(told | {"port": relay.port}), flush=True)
        sys.stdin.read()
        relay.close()
        server.communicate()


if __name__ == "__main__":
    main()
