"""From a command to running supervisors: environment, port, orders, process."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from unidle.clock import boot_id
from unidle.engine.local.devices.visible import visible_devices
from unidle.engine.local.ranks import cgroups, netns, rundir
from unidle.engine.local.ranks.rundir import SupervisorOrders
from unidle.engine.protocol import StartGang
from unidle.fleet import Fleet, Node, device_of
from unidle.jobs import JobSpec, Limits, RankPlace, Role, role_of

MASTER_ADDR = "127.0.0.1"  # every node of this engine is on this machine
UNSET = ("UNIDLE_STORE",)
# by these a script sees that it is one of several processes, and finds the others
RENDEZVOUS = (
    "RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_USE_AGENT_STORE",
)  # fmt: skip


def address_of(fleet: Fleet, node_id: str) -> str:
    """Where rank 0 on that node is reached: its own address where it has a network of its own."""
    node = next((n for n in fleet.nodes if n.id == node_id and n.netns), None)
    return MASTER_ADDR if node is None else node.address


def record_gang(directory: str, port: int, address: str) -> int:
    """Write the gang's address for ranks that a later engine may start; returns the port."""
    rundir.write_json(
        f"{directory}/{rundir.GANG}",
        {"master_addr": address, "master_port": port, "boot": boot_id()},
    )
    return port


def recorded_port(directory: str, *, starts_rank_0: bool) -> int:
    """The port of a gang of which some ranks were started before; OSError when it cannot be used."""
    known = rundir.read_json(f"{directory}/{rundir.GANG}") or {}
    if known.get("boot") != boot_id():
        raise OSError("the machine was restarted since the gang began to start")
    port = known.get("master_port")
    if starts_rank_0 or not isinstance(port, int):
        raise OSError("the supervisor of rank 0 ended before it began, and the gang's port with it")
    return port


def run_id(name: str, job: str, attempt: int) -> str:
    """Unique per run root and attempt, so that no attempt reads what another one left."""
    return f"{name}-{job}-{attempt}"


def environments(
    command: StartGang, fleet: Fleet, port: int, name: str, inherited: Mapping[str, str], address: str = ""
) -> list[dict[str, str]]:
    """What each rank's environment has beyond the inherited one, in rank order.

    The variables are those of torchrun, so that a script written for it needs no change; a job without
    a rendezvous has only unidle's own. A node of the fleet is a group (GROUP_RANK), also where all of them
    are this machine. ``address`` is that of rank 0's node, where the nodes are hosts of their own.
    """
    places = command.places
    nodes = list(dict.fromkeys(place.node for place in places))
    known = {node.id: node for node in fleet.nodes if node.netns}
    address = address or address_of(fleet, places[0].node)
    devices = {device.id: device for device in fleet.devices()}
    vendors = {device.vendor for device in devices.values() if device.kind == "gpu"}
    seen = dict.fromkeys(nodes, 0)
    found = []
    for place in places:
        env = path_of_ranks(inherited)
        env |= _defaults(len(places), {**inherited, **command.spec.env})
        env |= command.spec.env
        env |= _gang(command, port, name, address)
        if (node := known.get(place.node)) is not None:
            env |= _sockets(node, {**inherited, **env})
        env |= _numbers(command, place, nodes, seen[place.node])
        for variable in _withheld(command.spec):
            env.pop(variable, None)
        env |= visible_devices(
            [devices[d] for name in place.slices if (d := device_of(name)) in devices], vendors
        )
        if (service := command.spec.service) is not None and place.rank == 0:
            env[rundir.SERVICE] = f"{service.port} {service.ready}"
        seen[place.node] += 1
        found.append(env)
    return found


def _numbers(command: StartGang, place: RankPlace, nodes: Sequence[str], local_rank: int) -> dict[str, str]:
    """Which rank this is: of its job, of its node and of its role."""
    places = command.places
    return {
        "RANK": str(place.rank),
        **_role(command.spec.roles, place.rank, len(places)),
        "LOCAL_RANK": str(local_rank),
        "LOCAL_WORLD_SIZE": str(sum(p.node == place.node for p in places)),
        "GROUP_RANK": str(nodes.index(place.node)),
        "GROUP_WORLD_SIZE": str(len(nodes)),
        "UNIDLE_NODE": place.node,
        "UNIDLE_RANK": str(place.rank),
    }


def common_environment(command: StartGang, inherited: Mapping[str, str]) -> dict[str, str]:
    """The environment that all ranks of a job have, whatever their attempt: the whole of it."""
    own = {**inherited, **command.spec.env}
    common = {
        **inherited,
        **path_of_ranks(inherited),
        **_defaults(len(command.places), own),
        **command.spec.env,
    }
    return {name: value for name, value in common.items() if name not in UNSET}


def _gang(command: StartGang, port: int, name: str, address: str) -> dict[str, str]:
    return {
        "WORLD_SIZE": str(len(command.places)),
        "MASTER_ADDR": address,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id(name, command.job, command.attempt),
        "TORCHELASTIC_RESTART_COUNT": str(command.attempt - 1),
        "TORCHELASTIC_MAX_RESTARTS": str(command.spec.restart.max),
        # rank 0 holds the store: there is no agent of torch's that could
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "UNIDLE_JOB": command.job,
        "UNIDLE_ATTEMPT": str(command.attempt),
        "UNIDLE_RUN_ID": run_id(name, command.job, command.attempt),
        "UNIDLE_RANKS": str(len(command.places)),
        **_for_checkpoints(command),
        **_for_flops(command),
    }


def _for_flops(command: StartGang) -> dict[str, str]:
    """Each rank counts the operations of one step, if the job file does not give them."""
    flops = command.spec.flops
    return {} if flops is None or flops.per_step is not None else {"UNIDLE_COUNT_FLOPS": "1"}


def _withheld(spec: JobSpec) -> tuple[str, ...]:
    """Names that no rank of the job has, also not by inheritance. A role that the job names is no rendezvous."""
    if spec.rendezvous == "torchrun":
        return ()
    return tuple(name for name in RENDEZVOUS if not (spec.roles and name.startswith("ROLE_")))


def _role(roles: tuple[Role, ...], rank: int, ranks: int) -> dict[str, str]:
    """The rank's role, and its place among those of it."""
    name = role_of(roles, rank)
    same = [other for other in range(ranks) if role_of(roles, other) == name] if roles else range(ranks)
    return {"ROLE_NAME": name, "ROLE_RANK": str(same.index(rank)), "ROLE_WORLD_SIZE": str(len(same))}


def _for_checkpoints(command: StartGang) -> dict[str, str]:
    """The environment variables that ``unidle.rank.checkpoint`` reads."""
    known = {"UNIDLE_MTTF_S": command.mttf_s, "UNIDLE_RESTART_S": command.restart_s}
    found = {name: f"{value:.1f}" for name, value in known.items() if value is not None}
    if command.spec.checkpoint_memory:
        from unidle.checkpoint.holder.wire import hold_base  # few jobs ask for it

        found["UNIDLE_HOLD_DIR"] = hold_base()
    return found


def _sockets(node: Node, present: Mapping[str, str]) -> dict[str, str]:
    """By which interface the ranks of a node with a network of its own reach each other."""
    names = [
        name
        for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
        if name not in present
    ]
    interface = netns.interface_of(node.netns, node.address) if names else ""
    return dict.fromkeys(names, interface) if interface else {}


def _defaults(ranks: int, present: Mapping[str, str]) -> dict[str, str]:
    wanted = {"PYTHONUNBUFFERED": "1"}  # else steps are seen only when a buffer is full
    if ranks > 1:
        wanted["OMP_NUM_THREADS"] = "1"
    return {key: value for key, value in wanted.items() if key not in present}


def path_of_ranks(inherited: Mapping[str, str]) -> dict[str, str]:
    """PATH with the programs next to this Python first, where that is what `python` should mean.

    That is so in a virtual environment with PyTorch that is called by its path, and while no other
    environment is active: a script then runs with the packages of unidle's environment.
    """
    here = os.path.join(sys.prefix, "bin")
    path = inherited.get("PATH", os.defpath)
    outside = sys.prefix == sys.base_prefix or inherited.get("VIRTUAL_ENV") or inherited.get("CONDA_PREFIX")
    if outside or here in path.split(os.pathsep) or find_spec("torch") is None:
        return {}
    return {"PATH": here + os.pathsep + path}


def orders_for(
    command: StartGang,
    rank: int,
    env: dict[str, str],
    groups: dict[str, str],
    clock_offset_ns: int,
    limits: Limits | None = None,
) -> SupervisorOrders:
    """The orders of one rank; ``limits`` are in force instead of the job's, which they are no looser than."""
    spec = command.spec
    limits = limits or spec.limits
    return SupervisorOrders(
        argv=list(spec.command),
        workdir=str(Path(spec.workdir).absolute()),
        env=env,
        unset=[*UNSET, *_withheld(spec)],
        clock_offset_ns=clock_offset_ns,
        grace_ns=int(spec.grace_s * 1e9),
        groups=cgroups.needed(groups, limits.cpus),
        memory_bytes=limits.memory_bytes,
        cpus=limits.cpus,
        pids=limits.pids,
        progress_pattern=spec.progress_pattern,
        # the directory belongs to the gang: one watcher sees each checkpoint once
        checkpoint_path=_below(spec.workdir, spec.checkpoint_path) if rank == 0 else None,
        boot=boot_id(),
    )


def _below(workdir: str, path: str | None) -> str | None:
    return None if path is None else str(Path(workdir).absolute() / path)
