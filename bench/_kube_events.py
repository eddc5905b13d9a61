"""A server of HTTP whose list of pods is empty and whose watch is the lines of a file, as fast as they are read."""

from __future__ import annotations

import contextlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BLOCK = 1 << 18


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    events = b""

    def do_GET(self) -> None:
        if "watch=" not in self.path:
            body = (
                b'{"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}'
            )
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with contextlib.suppress(OSError):  # the client leaves when it has enough
            for at in range(0, len(self.events), BLOCK):
                part = self.events[at : at + BLOCK]
                self.wfile.write(b"%x\r\n%b\r\n" % (len(part), part))
            self.rfile.read(1)
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    Handler.events = Path(sys.argv[1]).read_bytes()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()
