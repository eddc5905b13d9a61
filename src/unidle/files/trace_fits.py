"""Which jobs of a trace a fleet can hold, and why it cannot hold the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from unidle.files.document import BadFile
from unidle.files.trace import JobTrace, TraceJob
from unidle.fleet import Fleet
from unidle.share.select import names_model


def check_fits(trace: JobTrace, fleet: Fleet) -> None:
    """Refuse a job of models or of a queue that the fleet does not have, and a job larger than any node or than the fleet."""
    for error in _misfits(trace, fleet).values():
        raise error


def without_misfits(trace: JobTrace, fleet: Fleet) -> tuple[JobTrace, int]:
    """The jobs that some state of the fleet holds, and how many are left out. Errors: names as in :func:`check_fits`."""
    misfits = _misfits(trace, fleet)
    if len(misfits) == len(trace.jobs):
        raise next(iter(misfits.values()))
    return JobTrace(trace.source, tuple(job for job in trace.jobs if job.job not in misfits)), len(misfits)


def _misfits(trace: JobTrace, fleet: Fleet) -> dict[str, BadFile]:
    """Why jobs are larger than any node or than the fleet."""
    sizes = _Sizes(fleet)
    parents = {queue.parent for queue in fleet.queues}
    queues = [queue.name for queue in fleet.queues if queue.name not in parents]
    fits: set[tuple[object, ...]] = set()
    found: dict[str, BadFile] = {}
    for job in trace.jobs:
        if queues and job.queue not in queues:
            raise trace.error(
                job, "queue", "the fleet file has no such queue that takes jobs", job.queue,
                f"its queues are {', '.join(queues[:8])}; or name one of them with --queue-map",
            )  # fmt: skip
        shape = (job.models, job.gpus, job.ranks, job.cpu_milli, job.memory_bytes)
        if shape in fits:
            continue
        why = sizes.misfit(trace, job)
        if why is None:
            fits.add(shape)
        else:
            found[job.job] = why
    return found


class _Sizes:
    """What the empty fleet holds, node by node, without tainted ones: a trace tolerates no taint."""

    def __init__(self, fleet: Fleet) -> None:
        nodes = [n for n in fleet.nodes if not n.taints]
        self._models = sorted({d.model for n in nodes for d in n.devices if d.kind == "gpu"})
        self._nodes = [
            ([d.model for d in n.devices if d.kind == "gpu"], round(n.cpus * 1000), n.memory_bytes)
            for n in nodes
        ]

    def misfit(self, trace: JobTrace, job: TraceJob) -> BadFile | None:
        """Why no state of the fleet holds the job; None where one does. Errors: for models of which it has none."""
        if job.models and not _matching(self._models, job.models):
            known = ", ".join(m or "(none)" for m in self._models) or "none: it has no GPU"
            raise trace.error(
                job, "model", "the fleet has no such GPU", "|".join(job.models),
                f"its models are {known}; or name one of them with --model-map",
            )  # fmt: skip
        room = [self._ranks(job, *node) for node in self._nodes]
        if sum(room) >= job.ranks:
            return None
        total = sum(_matching(models, job.models) for models, _, _ in self._nodes)
        if job.gpus > total:
            of = f" of {' or '.join(job.models)}" if job.models else ""
            return trace.error(job, "gpus", f"more than the fleet has: {total}{of}", job.gpus, _TOO_LARGE)
        if any(room):
            text = f"the nodes do not hold so many ranks of {job.gpus_each} GPUs each"
            return trace.error(job, "ranks", text, job.ranks, _TOO_LARGE)
        return self._rank_misfit(trace, job)

    def _rank_misfit(self, trace: JobTrace, job: TraceJob) -> BadFile:
        """Why no node holds a single rank."""
        each, cpu, least = job.gpus_each, job.cpu_milli_each, job.memory_bytes_each >> 20
        largest = max((_matching(models, job.models) for models, _, _ in self._nodes), default=0)
        if each > largest:
            return trace.error(
                job, "gpus", f"{each} for each rank, more than any node has: {largest}", job.gpus,
                "a rank is on one node: give ranks, or leave the job out",
            )  # fmt: skip
        able = [
            (cpus, memory) for models, cpus, memory in self._nodes if _matching(models, job.models) >= each
        ]
        cpus, memory = max(cpus for cpus, _ in able), max(memory for _, memory in able) >> 20
        if 0 < cpus < cpu:
            text = f"{cpu} for each rank, more than any node with its GPUs has: {cpus}"
            return trace.error(job, "cpu_milli", text, job.cpu_milli, _TOO_LARGE)
        text = f"{least} for each rank, which no node has in addition to its GPUs and {cpu} of CPU"
        if 0 < memory < least:
            text = f"{least} for each rank, more than any node with its GPUs has: {memory}"
        return trace.error(job, "memory_mib", text, job.memory_bytes >> 20, _TOO_LARGE)

    def _ranks(self, job: TraceJob, models: list[str], cpu_milli: int, memory_bytes: int) -> int:
        """How many ranks of the job the node holds; 0 CPU or memory is unknown and bounds nothing."""
        ranks = _matching(models, job.models) // job.gpus_each
        for has, needs in ((cpu_milli, job.cpu_milli_each), (memory_bytes, job.memory_bytes_each)):
            if has and needs:
                ranks = min(ranks, has // needs)
        return ranks


_TOO_LARGE: Final = "leave the job out (--skip-misfits does), or name a larger fleet"


def _matching(models: Iterable[str], wanted: tuple[str, ...]) -> int:
    return sum(not wanted or any(names_model(name, model) for name in wanted) for model in models)
