"""A gRPC server with the service of a kubelet that lists devices of pods: ``python kubelet_server.py SOCKET FILE``.

FILE is read for each call: JSON with ``allocatable`` (resource -> ids), ``pods`` (name -> resource -> ids), ``claims`` (name -> pairs of
driver and device). ``{"refuse": true}`` and ``{"hang": true}`` are what a kubelet may do, too. It prints a line when it listens.
"""

from __future__ import annotations

import json
import sys
import time
from concurrent import futures
from pathlib import Path

import grpc

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from agent.protobuf import message

TOPOLOGY = (3, message((1, message((1, 1)))))  # NUMA node 1


def devices(ids: dict[str, list[str]]) -> list[bytes]:
    """One message for each device, as of a kubelet with a topology."""
    return [message((1, resource), (2, one), TOPOLOGY) for resource, some in ids.items() for one in some]


def container(ids: dict[str, list[str]], claims: list[list[str]]) -> bytes:
    claimed = [
        message((2, "claim"), (3, "default"), (4, message((2, driver), (3, "pool"), (4, name))))
        for driver, name in claims
    ]
    return message(
        (1, "main"), *((2, one) for one in devices(ids)), (3, 7), (4, message((1, "memory"), (2, 2**40))),
        *((5, one) for one in claimed),
    )  # fmt: skip


class Lister(grpc.GenericRpcHandler):
    def __init__(self, file: Path) -> None:
        self.file = file

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        answers = {"List": self.listed, "GetAllocatableResources": self.allocatable}
        return grpc.unary_unary_rpc_method_handler(answers[details.method.rpartition("/")[2]])

    def told(self, context: grpc.ServicerContext) -> dict:
        told = json.loads(self.file.read_text())
        if told.get("refuse"):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        while json.loads(self.file.read_text()).get("hang"):
            time.sleep(0.02)
        return told

    def allocatable(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        assert request == b""
        return message(
            *((1, one) for one in devices(self.told(context).get("allocatable", {}))), (2, 0), (2, 1)
        )

    def listed(self, request: bytes, context: grpc.ServicerContext) -> bytes:
        told, found = self.told(context), []
        claims = told.get("claims", {})
        for name in {**told.get("pods", {}), **claims}:
            namespace, _, pod = name.partition("/")
            inside = container(told.get("pods", {}).get(name, {}), claims.get(name, []))
            found.append((1, message((1, pod), (2, namespace), (3, inside), (3, container({}, [])))))
        return message(*found)


def main() -> None:
    server = grpc.server(futures.ThreadPoolExecutor(8))
    server.add_generic_rpc_handlers((Lister(Path(sys.argv[2])),))
    server.add_insecure_port(f"unix:{sys.argv[1]}")
    server.start()
    print("listens", flush=True)
    server.wait_for_termination()


main()
