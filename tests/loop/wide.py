"""Fleets and jobs by chance, as users write them: mappings of the fleet and job files, read by the real loaders.

Small on purpose: what holds of schedulers breaks where several rare things meet on one device or in one
queue, not where there is much of everything.
"""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from loop.worlds import Ask, World
from unidle.engine.sim.workload import S, SimJob
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.place.admission import check_queues

File = dict[str, Any]
H100, A100 = "NVIDIA H100 80GB HBM3", "A100"
CUTS = ([400_000, 600_000], [250_000, 250_000, 500_000], [333_333, 333_333, 333_334], [100_000, 900_000])
FRACTIONS = (0.1, 0.25, 0.3, 0.333333, 0.4, 0.5, 0.6, 0.7)
LEVELS = ("low", "low", "medium", "high")
# the world begins on a Thursday at 00:16:40 (UTC)
WINDOWS = ("thu 00:17-00:19", "thu 00:18-00:21", "thu 00:20-23:59", "mon-fri 00:19-00:20")


def _some(draw: st.DrawFn, one_in: int) -> bool:
    """True now and then, and simplest where it is not."""
    return draw(st.integers(1, one_in)) == one_in


@st.composite
def devices(draw: st.DrawFn, kind: str, cut: str) -> File:
    """Devices that are alike: whole, cut as declared, or cut on demand."""
    found: File = {"count": draw(st.integers(1, 3)), "kind": kind}
    if kind == "gpu":
        found |= {"model": draw(st.sampled_from([H100, H100, A100])), "memory": "80GiB"}
        if found["model"] == A100 and _some(draw, 4):
            found |= {"vendor": "amd", "model": "MI210"}
    if cut == "declared":
        return found | {"count": draw(st.integers(1, 2)), "slices_ppm": draw(st.sampled_from(CUTS))}
    if cut == "demand":
        share: File = {}
        if kind == "gpu" and found.get("vendor") != "amd":
            modes = ["mig", "mps", "time"] if found["model"] == H100 else ["mps", "time"]
            share["modes"] = draw(st.lists(st.sampled_from(modes), min_size=1, unique=True))
        if _some(draw, 2):
            factors = st.sampled_from([1, 1.5, 3])
            share["oversubscribe"] = {"compute": draw(factors), "memory": draw(factors)}
        return found | {"share": share}
    return found


@st.composite
def nodes(draw: st.DrawFn, name: str, kinds: tuple[str, ...], cuts: str) -> File:
    """One node, with one or two groups of devices of each kind."""
    groups = []
    for kind in kinds:
        for _ in range(1 + _some(draw, 4)):
            cut = draw(st.sampled_from(["whole", "declared", "demand"])) if cuts == "mixed" else cuts
            groups.append(draw(devices(kind, cut)))
    found: File = {"id": name, "devices": groups}
    _add(
        draw, found, ("cpus", 3, (2, 4)), ("memory", 4, ("8GiB",)), ("taints", 6, (["spot"],)), ("labels", 4, ({"zone": "a"},)),
    )  # fmt: skip
    return found


@st.composite
def fleets(draw: st.DrawFn, most: int) -> File:
    """One to ``most`` nodes, of one kind of devices or two, on up to two leaves."""
    cuts = draw(st.sampled_from(["whole", "whole", "declared", "demand", "mixed"]))
    kinds = draw(st.sampled_from([("gpu",), ("gpu",), ("cpu",), ("gpu", "cpu")]))
    found: File = {"nodes": [draw(nodes(f"n{k}", kinds, cuts)) for k in range(draw(st.integers(1, most)))]}
    if _some(draw, 2):
        found["tiers"] = [{"id": "spine", "kind": "spine"}]
        found["tiers"] += [{"id": f"leaf{k}", "kind": "leaf", "parent": "spine"} for k in range(2)]
        for node in found["nodes"]:
            node["parent"] = draw(st.sampled_from(["leaf0", "leaf1"]))
    if not _some(draw, 4):
        found["queues"] = draw(queues(found))
    _add(
        draw, found, ("migration", 4, ({"gain_least": 1}, {"gain_least": 2})), ("history", 4, ({"weight": 0}, {"weight": 1})),
    )  # fmt: skip
    return found


@st.composite
def queues(draw: st.DrawFn, fleet: File) -> list[File]:
    """One to three queues, now and then two teams in a department; small amounts, in halves and tenths."""
    groups = [group for node in fleet["nodes"] for group in node["devices"]]
    resources = sorted(
        {g["kind"] for g in groups} | {f"{g['kind']}:{g['model']}" for g in groups if "model" in g}
    )
    named = draw(st.lists(st.sampled_from(resources), min_size=1, max_size=2, unique=True))
    shape = draw(st.sampled_from([("a",), ("a", "b"), ("a", "b"), ("a", "b", "c"), ("d", "d/a", "d/b", "b")]))
    found = []
    for path in shape:
        parent, _, name = path.rpartition("/")
        queue: File = {"name": name} | ({"parent": parent} if parent else {})
        if name == "d":
            if _some(draw, 2):
                queue["limit"] = {r: draw(st.sampled_from([1, 1.5, 2, 4])) for r in named}
            found.append(queue)
            continue
        if _some(draw, 3):
            queue["weight"] = draw(st.integers(1, 3))
        queue |= draw(amounts(named))
        if _some(draw, 5):
            queue["kind"] = draw(st.sampled_from(["exclusive", "public"]))
            if queue["kind"] == "exclusive":
                queue.pop("borrow", None)
        if _some(draw, 6):
            queue["reclaimable"] = False
        if _some(draw, 5):
            window = {
                k: v for k, v in draw(amounts(named)).items() if k in ("guarantee", "deserved", "limit")
            }
            queue["windows"] = [{"when": draw(st.sampled_from(WINDOWS)), **window}]
        found.append(queue)
    return found


@st.composite
def amounts(draw: st.DrawFn, named: list[str]) -> File:
    """What a queue may use; each amount is there now and then, and they do not contradict each other."""
    found: File = {}
    for resource in named:
        least = 0.0
        for what, each in (
            ("guarantee", (0.5, 1, 2)),
            ("deserved", (0.5, 1, 2, 3)),
            ("limit", (0.3, 0.4, 0.5, 0.8, 1, 1.5, 2, 3)),
        ):
            if _some(draw, 2 if what == "limit" else 3):
                least = max(least, draw(st.sampled_from(each)))
                found.setdefault(what, {})[resource] = least
        for what in ("lend", "borrow"):
            if _some(draw, 5):
                found.setdefault(what, {})[resource] = draw(st.sampled_from([0, 0.5, 1]))
    return found


def _add(draw: st.DrawFn, to: File, *fields: tuple[str, int, tuple[Any, ...]]) -> None:
    """Each of these fields now and then: its name, once in how often, its values."""
    for name, one_in, values in fields:
        if _some(draw, one_in):
            to[name] = draw(st.sampled_from(values))


@st.composite
def jobs(draw: st.DrawFn, fleet: File, *, plain: bool) -> File:
    """One job file; a ``plain`` one says how much, whose and for how long, and no more."""
    groups = [group for node in fleet["nodes"] for group in node["devices"]]
    kinds = sorted({group["kind"] for group in groups})
    found: File = {
        "name": draw(st.sampled_from(["x", "y"])),
        "device": draw(st.sampled_from([*kinds, "any"])),
    }
    if "queues" in fleet:
        parents = {queue.get("parent") for queue in fleet["queues"]}
        leaves = [queue["name"] for queue in fleet["queues"] if queue["name"] not in parents]
        found["queue"] = draw(st.sampled_from(leaves))
    found["preemption"] = draw(st.sampled_from(LEVELS))
    found["ranks"] = draw(st.sampled_from([1, 1, 1, 2, 2, 3, 4]))
    parts = any("share" in group or "slices_ppm" in group for group in groups)
    if parts and not _some(draw, 3):
        found["share"] = draw(shares(found["device"], kinds))
    else:
        _add(draw, found, ("devices_per_rank", 4, (2,)))
    _add(draw, found, ("estimate_s", 2, (10, 30, 100)), ("checkpoint", 3, ({"path": "ckpt"},)))
    found["grace_s"] = draw(st.sampled_from([0, 10]))
    if _some(draw, 6):  # it takes cores and memory only
        found |= {"device": "cpu", "devices_per_rank": draw(st.sampled_from([0, 0, 1]))}
        found.pop("share", None)
        _add(draw, found, ("requests", 2, ({"cpus": 2}, {"cpus": 1, "memory": "4GiB"})))
    if not plain:
        _wish(draw, found, sorted({group["model"] for group in groups if "model" in group}))
    return found


def _wish(draw: st.DrawFn, to: File, models: list[str]) -> None:
    """What else a job may say: where it runs, how it is treated, how long it waits."""
    _add(
        draw, to, ("priority", 4, (1, 2)), ("min_runtime_s", 4, (20, 60)), ("requests", 5, ({"cpus": 1}, {"cpus": 2}, {"memory": "4GiB"})),
        ("tolerate", 4, (["spot"],)), ("node_labels", 8, ({"zone": "a"},)), ("queue_timeout_s", 8, (60,)), ("timeout_s", 8, (90,)),
        ("topology", 3, ({"require": "leaf"}, {"require": "node"}, {"prefer": "leaf"})),
    )  # fmt: skip
    to["restart"] = {"max": draw(st.sampled_from([0, 3])), "backoff_s": draw(st.sampled_from([0, 5]))}
    if models and to.get("devices_per_rank") != 0 and _some(draw, 4):
        which = draw(st.sampled_from(["include", "include", "exclude"]))
        to["models"] = {which: [draw(st.sampled_from(models))]}
    if to["device"] != "cpu":
        _add(draw, to, ("hardware", 6, ({"mix": True}, {"vendor": "nvidia"}, {"prefer": "cost"})))
    if to["ranks"] == 4 and "share" not in to:
        _add(draw, to, ("layout", 2, ({"tp": 2, "dp": 2},)))
        if "layout" in to and _some(draw, 2):
            to["topology"] = {**to.get("topology", {}), "groups": {"tp": "node"}}


@st.composite
def shares(draw: st.DrawFn, device: str, kinds: list[str]) -> File:
    gpu = device == "gpu" or (device == "any" and "gpu" in kinds)
    if gpu and _some(draw, 6):
        return {"profile": draw(st.sampled_from(["1g.10gb", "2g.20gb", "3g.40gb", "7g.80gb"]))}
    mode = {"mode": draw(st.sampled_from(["mig", "mps", "time"]))} if gpu and _some(draw, 4) else {}
    if gpu and _some(draw, 4):
        return {"memory": draw(st.sampled_from(["10GiB", "20GiB", "40GiB"]))} | mode
    return {"fraction": draw(st.sampled_from(FRACTIONS))} | mode


@st.composite
def works(draw: st.DrawFn, job: File, *, calm: bool) -> File:
    """What a job truly does; often about what it said."""
    said = job.get("estimate_s")
    found: File = {"at_s": draw(st.sampled_from(TIMES))}
    found["work_s"] = (
        said if said is not None and not _some(draw, 3) else draw(st.sampled_from([1, 10, 30, 60, 200]))
    )
    if "checkpoint" in job:
        found["step_s"] = draw(st.sampled_from([1, 5]))
        found["checkpoint_every"] = draw(st.sampled_from([0, 2]))
        found["saves_on_stop"] = draw(st.booleans())
    if not calm and _some(draw, 5):
        found["fails_s"] = draw(st.sampled_from([0, 5, 20]))
    for name, each in (("startup_s", (0, 0, 2)), ("stop_s", (0, 0, 3, 20))):
        if value := draw(st.sampled_from(each)):
            found[name] = value
    return found


TIMES = (0, 0, 0, 1, 5, 10, 10, 30, 60, 100, 150, 200)


@st.composite
def wide_worlds(draw: st.DrawFn, *, calm: bool = False) -> File:
    """A fleet file, job files and what happens (see :func:`world_of`).

    ``calm``: nothing but jobs; else nodes fail, jobs are cancelled, controllers die.
    """
    plain = draw(st.booleans())  # and then devices are scarce
    fleet = draw(fleets(most=2 if plain else 4))
    asks: list[File] = []
    for _ in range(draw(st.integers(2, 10))):
        again = asks and _some(draw, 3)
        job = draw(st.sampled_from(asks))["job"] if again else draw(jobs(fleet, plain=plain))
        asks.append({"job": job, **draw(works(job, calm=calm))})
    found: File = {"fleet": fleet, "asks": asks}
    if not calm:
        times = st.sampled_from(TIMES)
        names = st.sampled_from([node["id"] for node in fleet["nodes"]])
        found["faults"] = draw(st.lists(st.tuples(times, names, st.sampled_from([5, 50, 200])), max_size=2))
        found["cancels"] = draw(st.lists(st.tuples(times, st.integers(0, len(asks) - 1)), max_size=2))
        found["kills"] = draw(st.lists(times, max_size=2))
    return found


def world_of(file: File) -> World:
    """What the files say, read as a user's are: job k is named ``jK``. :class:`BadInput` where they cannot be read."""
    fleet = fleet_from_mapping(file["fleet"], "fleet")
    check_queues(fleet)
    asks = []
    for k, ask in enumerate(file["asks"]):
        spec = job_from_mapping({"command": ["x"], "user": "u", **ask["job"]}, f"j{k}", ".")
        asks.append(Ask(ask["at_s"], f"j{k}", spec, _behaviour(ask)))
    return World(
        fleet, tuple(asks), tuple((at, f"j{k}") for at, k in file.get("cancels", ())),
        tuple((at, node, at + away) for at, node, away in file.get("faults", ())),
        tuple(sorted(file.get("kills", ()))),
    )  # fmt: skip


def _behaviour(ask: File) -> SimJob:
    fails = {1: (0, ask["fails_s"] * S, 1)} if "fails_s" in ask else None
    return SimJob(
        ask["work_s"] * S, ask.get("startup_s", 0) * S, ask.get("step_s", 0) * S, ask.get("checkpoint_every", 0), fails,
        stop_ns=ask.get("stop_s", 0) * S, saves_on_stop=ask.get("saves_on_stop", False), report_every=0,
    )  # fmt: skip
