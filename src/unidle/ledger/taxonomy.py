"""The causes of time: the leaves, their groups, and how a row can be known."""

from __future__ import annotations

from typing import Final, Literal

TAXONOMY_VERSION: Final = 6

How = Literal["measured", "inferred", "modelled"]

GROUPS: Final[dict[str, dict[str, str]]] = {
    "unseen": {"unseen": "no observation covered it"},
    "down": {
        "fault": "the device or its node is faulty",
        "repair": "under repair",
        "maintenance": "planned maintenance",
        "quarantine": "burn-in or probation after a fault",
        "boot": "the node boots",
        "taken": "used by others than jobs",
        "others_starting": "a pod that unidle did not start has it, and does not run yet",
        "others_running": "a pod that unidle did not start runs on it",
        "others_ending": "a pod that unidle did not start is being deleted on it",
        "drained": "cordoned or drained by others",
    },
    "free": {
        "no_demand": "no job needs it",
        "fragmented": "jobs wait, but no free shape fits any of them",
        "stranded": "jobs on its node took the cores or memory that are its share",
        "quota": "jobs wait, but their quota is used up",
        "reserved": "kept as a hot spare",
        "gathering": "kept while a gang's other devices are freed",
        "scheduler_latency": "a job that fits was not yet decided on",
    },
    "held": {
        "pod_binding": "the job's pod is made and bound to the node",
        "volume_mount": "volumes and network of the job's pod",
        "image_pull": "images of the job's pod are pulled, and its containers made",
        "container_start": "the container runs, and the rank has not started",
        "gang_wait": "allocated, and not all ranks of the gang have started",
        "preflight": "health checks before the start",
        "start": "image, process start, imports, set-up before the first step",
        "restore": "reading a checkpoint",
        "compile": "compilation and warm-up",
        "checkpoint": "steps blocked by saving a checkpoint",
        "data_stall": "waiting for input data",
        "evaluation": "evaluation between training steps",
        "hang": "alive, but the gang makes no progress",
        "silent": "the rank's host does not answer, and no step of that time is known",
        "preempting": "asked to leave, and saving or stopping",
        "idle": "allocated with nothing to run, before, between or after the work",
    },
    "step": {
        "useful": "training steps",
        "bubble": "pipeline bubble",
        "exposed_local": "communication inside the site that nothing hides",
        "exposed_wan": "communication between sites that nothing hides",
        "straggler_wait": "waiting for a slower rank",
        "host_gap": "the device waits for the host",
        "recompute": "activation recompute",
        "unmeasured": "ran without a step that anything saw: unknown whether it was of use",
    },
    "lost": {
        "replayed": "steps that had to be done again after a failure",
        "failed_start": "a start that failed: the gang ended before its first step",
        "preempted": "steps lost to preemption",
        "disrupted": "steps lost because others ended the gang, such as an eviction",
        "rolled_back": "steps undone on purpose",
        "no_artefact": "work of a job that ended without leaving a result",
    },
    "serve": {
        "within_slo": "requests served within their objective",
        "slo_missed": "requests that missed their objective or were aborted",
        "evicted_recompute": "recompute after eviction from the cache",
        "warm_idle": "a loaded model with no request",
        "model_load": "loading a model",
        "ready": "a replica that is ready, and of which no requests are measured",
        "unready": "a replica that was ready, and does not answer",
    },
    "fill": {
        "filled": "useful work of a filler, in a bubble or on a device that no other job used",
        "discarded": "filler work that was thrown away",
    },
}

GROUP_OF: Final[dict[str, str]] = {leaf: g for g, leaves in GROUPS.items() for leaf in leaves}

OTHERS: Final = frozenset({"others_starting", "others_running", "others_ending"})
"""Leaves of pods that unidle did not start: rows with these name the pod where others name a job."""
OTHER_POD: Final = "pod "
"""Begins the name of such a pod in a row, ``pod NAMESPACE/NAME``; no job is called so."""

# First match wins (the ledger's decision function follows this order).
PRECEDENCE: Final = ("unseen", "down", "lost", "fill", "serve", "held", "step", "free")

GROUP_COLOURS: Final[dict[str, str]] = {
    "step": "#1b9e77",
    "fill": "#66c2a5",
    "serve": "#3b7dd8",
    "held": "#e6a023",
    "lost": "#d1495b",
    "down": "#6a3d9a",
    "free": "#9aa3ad",
    "unseen": "#c9ced4",
}
