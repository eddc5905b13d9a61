"""The same model behind an event loop, in the process shape of uvicorn: one thread reads and writes all connections.

``--inline`` runs the model in the loop's own thread, a token at a time; else a pool of threads runs it, each for one
request. Answers are streamed as events; the first token goes out together with the headers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from server import Asked, Engine, Model


class Server:
    def __init__(self, engine: Engine, inline: bool) -> None:
        self.engine, self.inline = engine, inline
        self.pool = ThreadPoolExecutor(4)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = next(
                    int(line[15:])
                    for line in head.split(b"\r\n")
                    if line.lower().startswith(b"content-length:")
                )
                asked = json.loads(await reader.readexactly(length))
                await self.answer(Asked(list(asked["prompt"].encode()), asked["tokens"]), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def answer(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        headers = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        for _ in range(asked.tokens):
            if self.inline:
                (token,) = self.engine.step([asked.text])
            else:
                loop = asyncio.get_running_loop()
                (token,) = await loop.run_in_executor(self.pool, self.engine.step, [asked.text])
            asked.text.append(token)
            event = f"data: {json.dumps({'token': token})}\n\n".encode()
            writer.write(headers + f"{len(event):x}\r\n".encode() + event + b"\r\n")
            headers = b""
            await writer.drain()
            await asyncio.sleep(0)
        writer.write(b"0\r\n\r\n")


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inline", action="store_true")
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    given = parser.parse_args()
    torch.manual_seed(0)
    model = Model(given.width, given.layers).eval()
    server = await asyncio.start_server(Server(Engine(model, False), given.inline).serve, "127.0.0.1", 0)
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"port": port, "parameter_bytes": parameters}), flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
