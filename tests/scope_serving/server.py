"""A small inference server: a transformer of bytes behind the standard library's HTTP server, with streaming.

It knows of no profiler. When its standard input closes it writes what its own clock saw of each request to the file
``--truth``, which the analysis never reads. ``--batched`` serves all requests by one thread that runs the model once
for all of them (continuous batching); without it each request's thread runs the model for itself.
"""

from __future__ import annotations

import argparse
import json
import queue
import socket
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import torch
from torch import Tensor, nn

LONGEST = 512


class Model(nn.Module):
    """Predicts the next byte. No cache: each run reads the whole text, so runs take longer as it grows."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.places = nn.Embedding(LONGEST, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1])
        return self.head(self.layers(self.tokens(text) + self.places(places))[:, -1])


@dataclass(slots=True)
class Asked:
    text: list[int]
    tokens: int
    made: queue.Queue[int] = field(default_factory=queue.Queue)


class Engine:
    """Runs the model, for one request or for all that wait."""

    def __init__(self, model: Model, batched: bool) -> None:
        self.model, self.batched = model, batched
        self.new: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self.runs = 0
        self.lock = threading.Lock()
        if batched:
            threading.Thread(target=self._serve, daemon=True).start()

    def step(self, texts: list[list[int]]) -> list[int]:
        shortest = min(LONGEST, *(len(text) for text in texts))
        with torch.inference_mode():
            made = self.model(torch.tensor([text[-shortest:] for text in texts])).argmax(dim=-1).tolist()
        with self.lock:
            self.runs += 1
        return made

    def tokens(self, asked: Asked):
        if self.batched:
            count = asked.tokens  # the engine counts it down
            self.new.put(asked)
            for left in reversed(range(count)):
                yield asked.made.get()
                if left:
                    asked.made.task_done()  # it is sent
            return
        for _ in range(asked.tokens):
            (token,) = self.step([asked.text])
            asked.text.append(token)
            yield token

    def answered(self, asked: Asked) -> None:
        """All is sent, the end of the answer too: else that would follow the next run, as a token does."""
        if self.batched:
            asked.made.task_done()

    def _serve(self) -> None:
        active: list[Asked] = []
        while True:
            for asked in active:
                asked.made.join()  # no run before the tokens of the last one are sent, so that each belongs to one
            active = [a for a in active if a.tokens > 0]
            while not active or not self.new.empty():
                active.append(self.new.get())
            for asked, token in zip(active, self.step([a.text for a in active]), strict=True):
                asked.text.append(token)
                asked.tokens -= 1
                asked.made.put(token)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: Engine
    truth: list[dict[str, object]]

    def do_GET(self) -> None:
        self._whole(b"ok")

    def do_POST(self) -> None:
        began = time.perf_counter()
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        work = Asked(list(asked["prompt"].encode())[:LONGEST], asked["tokens"])
        times: list[float] = []
        if asked["stream"]:
            self._headers("text/event-stream", "Transfer-Encoding", "chunked")
            for token in self.engine.tokens(work):
                times.append(time.perf_counter())
                self._chunk(f"data: {json.dumps({'token': token})}\n\n".encode())
            self._chunk(b"")
        else:
            made = []
            for token in self.engine.tokens(work):
                times.append(time.perf_counter())
                made.append(token)
            self._whole(json.dumps(made).encode())
        self.engine.answered(work)
        ended = time.perf_counter()
        paces = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else None
        self.truth.append(
            {
                "ttft_s": times[0] - began,
                "tpot_s": paces,
                "whole_s": ended - began,
                "tokens": len(times),
                "streamed": asked["stream"],
            }
        )

    def _headers(self, kind: str, name: str, value: str) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header(name, value)
        self.end_headers()

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _whole(self, data: bytes) -> None:
        self._headers("application/json", "Content-Length", str(len(data)))
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class UnixServer(ThreadingHTTPServer):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "unix", 0
        self.RequestHandlerClass.disable_nagle_algorithm = False  # is of TCP

    def get_request(self):
        return self.socket.accept()[0], ("client", 0)


class SixServer(ThreadingHTTPServer):
    address_family = socket.AF_INET6


def listening(host: str, path: str | None) -> ThreadingHTTPServer:
    if path:
        return UnixServer(path, Handler)
    return (SixServer if ":" in host else ThreadingHTTPServer)((host, 0), Handler)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", type=Path)
    parser.add_argument("--batched", action="store_true")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--unix")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = Model(given.width, given.layers).eval()
    Handler.engine = Engine(model, given.batched)
    Handler.truth = []
    server = listening(given.host, given.unix)
    server.daemon_threads = False
    threading.Thread(target=server.serve_forever, daemon=True).start()
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    print(json.dumps({"port": server.server_port, "parameter_bytes": parameters}), flush=True)
    sys.stdin.read()
    server.shutdown()
    server.server_close()  # waits for what is being answered
    told = {"requests": Handler.truth, "runs": Handler.engine.runs}
    if given.truth:
        given.truth.write_text(json.dumps(told))


if __name__ == "__main__":
    main()
