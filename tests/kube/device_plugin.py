"""A device plugin of a kubelet: ``python device_plugin.py DIRECTORY RESOURCE FILE``. DIRECTORY is the kubelet's device-plugins.

FILE is JSON and may change: ``devices`` are the ids of those that are there, ``prefer`` ids in the order in which they are to be
given to pods. A container gets the ids that it was given as GIVEN_DEVICES. It prints a line when the kubelet has accepted it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path

import grpc

from unidle.agent.pods.pod_resources import fields

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from agent.protobuf import message

ENDPOINT = "unidle-test.sock"
OPTIONS = message((2, 1))  # it has preferences


def texts(content: bytes, number: int) -> list[str]:
    return [value.decode() for k, value in fields(content) if k == number and isinstance(value, bytes)]


class Plugin(grpc.GenericRpcHandler):
    def __init__(self, file: Path) -> None:
        self.file = file

    def told(self) -> dict[str, list[str]]:
        return json.loads(self.file.read_text())

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        name = details.method.rpartition("/")[2]
        if name == "ListAndWatch":
            return grpc.unary_stream_rpc_method_handler(self.list_and_watch)
        return grpc.unary_unary_rpc_method_handler(
            {
                "GetDevicePluginOptions": lambda *_: OPTIONS,
                "GetPreferredAllocation": self.preferred,
                "Allocate": self.allocate,
            }[name]
        )

    def list_and_watch(self, _request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
        before = None
        while context.is_active():
            now = self.told()["devices"]
            if now != before:
                before = now
                yield message(*((1, message((1, one), (2, "Healthy"))) for one in now))
            time.sleep(0.05)

    def preferred(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        found, wish = [], self.told().get("prefer", [])
        for k, one in fields(request):
            assert k == 1
            assert isinstance(one, bytes)
            free, must = texts(one, 1), texts(one, 2)
            [size] = [value for k, value in fields(one) if k == 3]
            order = [*must, *(name for name in wish if name in free), *sorted(free)]
            chosen = list(dict.fromkeys(order))[:size]
            found.append((1, message(*((1, name) for name in chosen))))
        return message(*found)

    def allocate(self, request: bytes, _context: grpc.ServicerContext) -> bytes:
        found = []
        for _, one in fields(request):
            assert isinstance(one, bytes)
            env = message((1, "GIVEN_DEVICES"), (2, ",".join(texts(one, 1))))
            found.append((1, message((1, env))))
        return message(*found)


def main() -> None:
    folder, resource, file = sys.argv[1:]
    os.chdir(folder)  # paths of sockets are short
    Path(ENDPOINT).unlink(missing_ok=True)
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Plugin(Path(file)),))
    server.add_insecure_port(f"unix:{ENDPOINT}")
    server.start()
    with grpc.insecure_channel("unix:kubelet.sock") as channel:
        register = channel.unary_unary("/v1beta1.Registration/Register")
        register(message((1, "v1beta1"), (2, ENDPOINT), (3, resource), (4, OPTIONS)), timeout=60)
    print("registered", flush=True)
    server.wait_for_termination()


main()
