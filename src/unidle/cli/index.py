"""All commands: where each is defined, and its line in ``unidle --help``. A test compares them with the commands.

It imports nothing, so that `unidle --help` need not import the commands.
"""

from __future__ import annotations

COMMANDS: dict[str, tuple[str, str]] = {
    "run": ("run", "Run a job on this machine, and show where its device time went."),
    "up": ("up", "Drive the jobs of a store until stopped."),
    "agent": ("agent", "Make this host part of a fleet, with its devices as found."),
    "check": ("check", "Check that this node is fit to run a job."),
    "submit": ("submit", "Put a job into the queue of a store."),
    "list": ("jobs", "List jobs: those that run or wait, and the last ten that ended."),
    "show": ("jobs", "Show a job's attempts, and how each of its ranks ended."),
    "explain": ("jobs", "Explain why a job waits, runs where it does, or ended."),
    "cancel": ("jobs", "Cancel a job."),
    "logs": ("logs", "Print the standard output and error of a job's ranks."),
    "exec": ("exec", "Run a command in the environment of a rank."),
    "rm": ("remove", "Remove jobs that have ended, with their logs and reports."),
    "prune": ("remove", "Remove all jobs that ended long ago, as `unidle rm` does."),
    "keep": ("keep", "Keep the files of jobs, whatever the fleet's retention is."),
    "progress": ("progress", "Show which steps are read from a job's output or a log file."),
    "clusters": ("clusters", "Show what is free in several clusters, or the cluster for a job."),
    "place": ("place", "Show where a job would be placed now, and why."),
    "queue": ("queue", "Show what each queue of a store deserves, uses and lends."),
    "predict": ("predict", "Predict step time and cost of a job on each GPU model."),
    "ledger": ("ledger", "Show where every second of every device went."),
    "report": ("ledger", "Write an HTML report of a job, or of a whole store."),
    "drill": ("drill", "Inject faults into a real run, and measure each recovery."),
    "profile": ("profile", "Show where a running process or job spends its time."),
    "schema": ("machine", "Print the JSON Schema of an input file."),
    "doctor": ("machine", "Show what this machine can do, and what is missing."),
    "tune": ("tune", "Find code that makes training slower than it has to be."),
    "replay": ("replay", "Replay recorded jobs or faults under other policies."),
    "guard": ("guard", "Show the health of nodes, and drain and repair them."),
    "span": ("span", "Plan, simulate and run training across data centres."),
    "fill": ("fill", "Run prefill of an inference service in the bubbles of training."),
    "checkpoint": ("checkpoint", "List, verify and prune checkpoints of any framework."),
    "kube": ("kube", "Install, remove and check unidle on a Kubernetes cluster."),
    "store": ("store", "Check, repair, export, import and compact a store."),
    "fleet": ("fleet", "Show the devices of a store, a fleet file or this machine."),
}
"""By name, the module of this package and the first sentence of the help. The order is that of the reference page."""

SECTIONS: dict[str, tuple[str, ...]] = {
    "Jobs": ("run", "submit", "list", "logs", "exec", "cancel", "rm", "prune", "keep"),
    "Insight": ("show", "explain", "progress", "ledger", "report", "profile", "tune", "predict"),
    "Fleet and queues": ("up", "agent", "fleet", "queue", "place", "clusters", "replay"),
    "Faults": ("check", "guard", "checkpoint", "drill"),
    "Data centres": ("span", "fill"),
    "Store": ("store", "kube", "doctor", "schema"),
}
"""The commands in the order of the help."""

EXIT_CODES: dict[int, str] = {
    0: "success; for `run`: the job succeeded",
    1: "the job failed or was cancelled, or a check found something",
    2: "bad input: an option, a job file, a fleet file, a job that does not exist; for `agent`: a token that is refused",
    3: "cannot run here: for instance, the gang needs more devices than the fleet has; for `check`: undecided",
    4: "the store is held by another writer, damaged, gone or out of reach; for `agent`: the controller is out of reach",
    5: "for `profile`: the process or job ended before the first sample",
    130: "interrupted",
}
