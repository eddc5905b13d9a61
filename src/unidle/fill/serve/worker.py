"""A worker of the front door on dedicated devices: ``python -m unidle.fill.serve.worker``, started by the door with a socket as descriptor."""

from __future__ import annotations

import argparse
import hashlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import asdict
from pathlib import Path

import msgspec
import torch

from unidle.errors import UnidleError
from unidle.fill.serve.generate import Generator, WorkerLimits
from unidle.fill.serve.model.config import ModelConfig
from unidle.fill.serve.model.load import load_model
from unidle.fill.serve.wire import Cancel, Frames, Report, Submit, ToWorker, WorkerGreeting, frame


def digest(config: ModelConfig) -> str:
    """Equal for equal configurations."""
    return hashlib.sha256(msgspec.json.encode(asdict(config))).hexdigest()[:16]


class Line:
    """The socket to the front door, of one thread."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self._frames = Frames(ToWorker)

    def send(self, message: msgspec.Struct) -> None:
        self._link.sendall(frame(message))

    def received(self, *, wait: bool) -> list[object] | None:
        """Messages that have arrived; with ``wait`` at least one of them. None at the end of the connection."""
        found = list[object]()
        while True:
            ready = select.select([self._link], [], [], None if wait and not found else 0)[0]
            if not ready:
                return found
            received = self._link.recv(1 << 20)
            if not received:
                return None
            found += self._frames.feed(received)


def serve(line: Line, generator: Generator) -> None:
    """Answer requests until the front door closes the connection."""
    while True:
        messages = line.received(wait=not generator.busy)
        if messages is None:
            return
        for message in messages:
            if isinstance(message, Submit):
                generator.submit(message)
            elif isinstance(message, Cancel):
                generator.cancel(message.id, message.sample)
        report: Report = generator.step()
        report.cpu_ns = time.process_time_ns()
        line.send(report)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m unidle.fill.serve.worker", description=__doc__)
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype")
    parser.add_argument("--threads", type=int)
    for name in ("--blocks", "--block-tokens", "--batch", "--chunk-tokens"):
        parser.add_argument(name, type=int, required=True)
    given = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the front door drains, and then closes the connection
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if given.threads:
        torch.set_num_threads(given.threads)
    line = Line(socket.socket(fileno=given.fd))
    try:
        model = load_model(given.model, given.device, given.dtype)
    except UnidleError as error:
        sys.stderr.write(f"unidle: {error}\n")
        return error.exit_code
    limits = WorkerLimits(given.blocks, given.block_tokens, given.batch, given.chunk_tokens)
    dtype = getattr(torch, given.dtype or model.config.dtype)
    generator = Generator(model, limits, torch.device(given.device), dtype)
    try:
        line.send(
            WorkerGreeting(
                "dedicated",
                digest(model.config),
                os.getpid(),
                limits.blocks,
                limits.block_tokens,
                limits.batch,
            )
        )
        serve(line, generator)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the front door has ended
    return 0


if __name__ == "__main__":
    sys.exit(main())
