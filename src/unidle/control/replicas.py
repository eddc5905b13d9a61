"""Replicas of a service: each is a job of its own, named after the first. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from unidle.jobs import JobSpec
from unidle.view.jobs import JobView
from unidle.view.state import View

UNREADY = "unready"


def replicas_of(job: str, spec: JobSpec) -> Iterator[tuple[str, JobSpec]]:
    """The jobs that a submission makes: itself, or all replicas of a service, of which the first has the job's own id."""
    service = spec.service
    if service is None or service.of:
        yield job, spec
        return
    for number in range(service.replicas):
        each = replace(service, of=job, replica=number)
        yield job if not number else f"{job}-{number}", replace(spec, service=each)


def replicas_in(view: View, job: JobView) -> list[JobView]:
    """All replicas of the service whose first one this is, by number; the job alone where it is no such."""
    service = job.spec.service
    if service is None or service.replica:
        return [job]
    names = [f"{job.id}-{number}" for number in range(1, service.replicas)]
    return [job, *(view.jobs[name] for name in names if name in view.jobs)]


def replica_line(view: View, job: JobView) -> dict[str, Any]:
    """One replica: its state, whether it is ready, and where it answers (None while that is not known)."""
    live = job.live
    rank = live.ranks[0] if live is not None else None
    ready = rank is not None and rank.ready_ns is not None and not rank.ended
    unready = ready and rank is not None and rank.open is not None and rank.open[1] == UNREADY
    port = rank.info.get("port") if rank is not None else None
    endpoint = None
    if ready and live is not None and port is not None:
        node = view.node(live.places[0].node)
        endpoint = f"http://{node.address if node is not None else live.places[0].node}:{port}"
    return {
        "job": job.id,
        "replica": job.spec.service.replica if job.spec.service is not None else 0,
        "state": job.state,
        "ready": ready and not unready,
        "ready_since_ns": rank.ready_ns if ready and rank is not None else None,
        "restarts": job.retries,
        "endpoint": endpoint,
    }


def service_detail(view: View, job: JobView) -> dict[str, Any] | None:
    """The replicas of the service that a job is the first of; of another replica itself; None of other jobs."""
    service = job.spec.service
    if service is None:
        return None
    lines = [replica_line(view, each) for each in replicas_in(view, job)]
    return {
        "of": service.of or job.id,
        "replicas": lines,
        "ready": sum(line["ready"] for line in lines),
        "wanted": 1 if service.replica else service.replicas,
        "endpoints": [line["endpoint"] for line in lines if line["ready"] and line["endpoint"]],
    }
