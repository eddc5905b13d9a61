"""A writer to a real API server and all its results, and objects to write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kube.cluster import pod
from unidle.kube.access import ClusterAccess
from unidle.kube.client import open_client
from unidle.kube.objects import ObjectKind
from unidle.kube.protocol import (
    Create,
    Delayed,
    Dropped,
    Selected,
    Write,
    WriteDone,
    WriteRefused,
    WriteResult,
)
from unidle.kube.writer import ApiWriter, open_writer
from waiting import wait_until


class Sent:
    """A writer and all its results."""

    def __init__(self, access: ClusterAccess) -> None:
        self.client = open_client(access)
        self.writer: ApiWriter = open_writer(self.client, timeout_s=5)
        self.results: list[WriteResult] = []

    def write(self, *writes: Write) -> list[WriteDone | WriteRefused | Dropped]:
        """Send them and wait for their ends, in the order of the writes."""
        first = len(self.results)
        self.writer.write(*writes)
        wait_until(lambda: self.poll() is None and not self.writer.waiting, what="the writes")
        self.poll()
        ends = [result for result in self.results[first:] if not isinstance(result, Delayed)]
        assert len(ends) == len(writes)
        return sorted(ends, key=lambda end: next(n for n, write in enumerate(writes) if write is end.write))

    def poll(self) -> None:
        self.results += self.writer.poll()

    def delays(self) -> list[str]:
        self.poll()
        return [result.error.reason for result in self.results if isinstance(result, Delayed)]


@contextlib.contextmanager
def sent(access: ClusterAccess) -> Iterator[Sent]:
    found = Sent(access)
    try:
        yield found
    finally:
        found.writer.close()
        found.client.close()


def config_map(namespace: str, name: str, job: str = "train", **data: str) -> dict[str, Any]:
    metadata = {"name": name, "namespace": namespace, "labels": {"unidle.dev/job": job}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def pending_pod(namespace: str, name: str) -> dict[str, Any]:
    """A pod that no scheduler binds."""
    made = pod(name, "pause", schedulerName="unidle")
    made["metadata"] |= {"namespace": namespace, "labels": {"unidle.dev/job": "train"}}
    return made


def made(to: Sent, kind: ObjectKind[Any], body: dict[str, Any]) -> Any:
    [end] = to.write(Create(kind, body))
    assert isinstance(end, WriteDone), end
    return end.object(kind)


def through(access: ClusterAccess, port: int, scheme: str = "http") -> ClusterAccess:
    return replace(access, server=f"{scheme}://127.0.0.1:{port}")


def ours(namespace: str) -> Selected:
    return Selected(namespace, "unidle.dev/job")
