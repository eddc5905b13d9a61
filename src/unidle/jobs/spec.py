"""The specification of one job, validated (see ``unidle.files`` for the file format)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from unidle.jobs.pod import PodWish
from unidle.jobs.restart import Elastic, Restart, Role, role_of

DeviceWish = Literal["gpu", "cpu", "any"]
Preemption = Literal["low", "medium", "high"]
ShareMode = Literal["any", "mig", "mps", "time"]
VendorWish = Literal["any", "nvidia", "amd", "ascend"]
Prefer = Literal["none", "speed", "cost"]
Fabric = Literal["infiniband", "roce", "ethernet"]
Rendezvous = Literal["none", "torchrun"]
JobKind = Literal["job", "service"]
WorkClass = Literal["normal", "filler"]


@dataclass(frozen=True, slots=True)
class Layout:
    """Sizes of the parallel groups; ``tp * dp * pp`` equals the number of ranks where given."""

    tp: int = 1
    dp: int = 1
    pp: int = 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds per rank; ``None`` is unbounded."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None


@dataclass(frozen=True, slots=True)
class Requests:
    """Resources of the node that each rank needs in addition to devices; 0: none."""

    cpus: float = 0.0
    memory_bytes: int = 0

    @property
    def given(self) -> bool:
        """Whether anything is requested."""
        return bool(self.cpus or self.memory_bytes)

    @property
    def cpu_milli(self) -> int:
        """Thousandths of cores."""
        return round(self.cpus * 1000)


@dataclass(frozen=True, slots=True)
class Select:
    """Names that may (``include``, all where empty) and must not (``exclude``) be used."""

    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Where:
    """Which devices and nodes a job may use. A node's taints exclude jobs that do not tolerate them."""

    models: Select = field(default_factory=Select)
    uuids: Select = field(default_factory=Select)
    labels: dict[str, str] = field(default_factory=dict)
    tolerate: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """Kinds of tiers (and ``node``) that contain the gang, or each of its parallel groups.

    ``groups`` and ``prefer_groups`` are by ``tp``, ``dp`` and ``pp``.
    """

    require: str | None = None
    prefer: str | None = None
    groups: dict[str, str] = field(default_factory=dict)
    prefer_groups: dict[str, str] = field(default_factory=dict)
    fabric: Fabric | None = None
    prefer_fabric: Fabric | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """A part of one device for each rank, instead of whole ones.

    ``compute_ppm`` and ``memory_bytes`` are the amounts (0: as much as the other one implies); ``profile`` names
    a MIG profile; ``mode`` is how the device may be cut.
    """

    compute_ppm: int = 0
    memory_bytes: int = 0
    profile: str = ""
    mode: ShareMode = "any"


@dataclass(frozen=True, slots=True)
class Hardware:
    """Which of the models of GPU that a job may use are tried first, by measured steps of jobs like it.

    ``vendor``: vendor of the GPUs that the program supports. With ``mix`` the gang may be on different models of
    one vendor, and runs at the speed of the slowest.
    """

    prefer: Prefer = "none"
    vendor: VendorWish = "any"
    mix: bool = False


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Floating-point operations of one step of the whole gang; ``per_step`` None: each rank counts them in one of its steps."""

    per_step: float | None = None


@dataclass(frozen=True, slots=True)
class Service:
    """A job that serves until it is cancelled, as ``replicas`` that are jobs of their own.

    ``port``: on which each replica answers, 0: one that is chosen at its start. ``ready``: path of an HTTP request that a
    replica which is ready answers with a status below 400; empty: it accepts a connection. ``of``: the job that was
    submitted; this one is replica number ``replica`` of it.
    """

    replicas: int = 1
    port: int = 0
    ready: str = ""
    of: str = ""
    replica: int = 0


@dataclass(frozen=True, slots=True)
class JobSpec:
    """One gang of ``ranks`` equal processes, each on ``devices_per_rank`` devices.

    With 0 devices per rank the ranks take only what they request of a node: cores and memory.
    """

    command: tuple[str, ...]
    name: str = "job"
    workdir: str = "."
    env: dict[str, str] = field(default_factory=dict)
    ranks: int = 1
    devices_per_rank: int = 1
    device: DeviceWish = "any"
    queue: str = "default"
    priority: int = 0
    user: str = ""
    layout: Layout | None = None
    checkpoint_path: str | None = None
    checkpoint_memory: bool = (
        False  # the engine keeps holders of copies in memory for it (``unidle.checkpoint.holder``)
    )
    quarantine_bad: bool = False  # a bad newest checkpoint is moved aside before a restart
    progress_pattern: str | None = None
    restart: Restart = field(default_factory=Restart)
    limits: Limits = field(default_factory=Limits)
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    grace_s: float = 10.0
    price_per_device_hour: float | None = None
    preemption: Preemption = "medium"  # high preempts, low is preempted, medium does neither
    min_runtime_s: float = 0.0  # an attempt is not preempted before
    estimate_s: float | None = None  # how long the job is expected to run
    requests: Requests = field(default_factory=Requests)
    where: Where = field(default_factory=Where)
    topology: Topology | None = None
    share: Share | None = None
    hardware: Hardware = field(default_factory=Hardware)
    steps: int | None = None  # of the whole run, where they are known
    elastic: Elastic | None = None  # ``ranks`` is then the size that it has now, or had last
    roles: tuple[Role, ...] = ()
    idle_ok: bool = False  # it may hold devices and do nothing, where the fleet lets jobs say so
    keep: bool = False  # its files stay, whatever the retention of the fleet
    kernels: bool = False  # its ranks' GPU kernels are recorded, by an injected library
    rendezvous: Rendezvous = (
        "torchrun"  # whether ranks get torchrun's variables, by which they find each other
    )
    pod: PodWish | None = None  # what it needs of its pods on a cluster
    flops: StepFlops | None = None
    job_class: WorkClass = "normal"  # a filler runs on what no other job uses, and makes room at once
    service: Service | None = None  # it serves, and is always restarted

    @property
    def devices(self) -> int:
        """Devices that the whole gang needs."""
        return self.ranks * self.devices_per_rank

    @property
    def needs_devices(self) -> bool:
        """Whether its ranks hold devices; without, they are placed by the cores and memory that they request."""
        return self.devices_per_rank > 0

    def on_fleet_of(self, kinds: Collection[str]) -> JobSpec:
        """The job on a fleet with these kinds of devices.

        Where it is for CPU devices and the fleet has none, each rank requests a core of its node for each of them instead.
        """
        named = self.share is not None or self.where.models != _EVERY or self.where.uuids != _EVERY
        if self.device != "cpu" or "cpu" in kinds or named or not self.needs_devices:
            return self
        cpus = self.requests.cpus or float(self.devices_per_rank)
        return replace(self, devices_per_rank=0, requests=replace(self.requests, cpus=cpus))

    @property
    def is_filler(self) -> bool:
        """Whether it is a filler job: in no queue's books, and never in the way of another job's start."""
        return self.job_class == "filler"

    @property
    def gives_way(self) -> bool:
        """Whether it may be stopped at any moment: of level low, without a minimum runtime, on whole devices."""
        return self.preemption == "low" and not self.min_runtime_s and self.share is None

    @property
    def ignored_ranks(self) -> frozenset[int]:
        """Ranks whose failure does not stop the gang, by the first matching restart policy."""
        said = [p for p in self.restart.policies if p.event == "fail"]
        if not any(p.action == "ignore" for p in said):
            return frozenset()
        roles = [
            role_of(self.roles, rank)
            for rank in range(self.elastic.max if self.elastic is not None else self.ranks)
        ]
        first = {r: next((p.action for p in said if p.role in ("", r)), "") for r in set(roles)}
        return frozenset(rank for rank, role in enumerate(roles) if first[role] == "ignore")

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of ranks that the gang may have, from most to least: whole stages and tensor groups of its layout."""
        if self.elastic is None:
            return (self.ranks,)
        unit = self.layout.tp * self.layout.pp if self.layout is not None else 1
        most = self.elastic.max - self.elastic.max % unit
        return tuple(range(most, max(self.elastic.min, 1) - 1, -unit))

    def at_size(self, ranks: int) -> JobSpec:
        """The same job with so many ranks; its layout has more or fewer data-parallel groups."""
        layout = self.layout
        if layout is not None:
            layout = replace(layout, dp=ranks // (layout.tp * layout.pp))
        return replace(self, ranks=ranks, layout=layout)

    @property
    def wish(self) -> str:
        """Placement constraints that distinguish gangs of one size, as text; usually empty."""
        plain = self.layout is None and self.topology is None and self.share is None
        usual = self.preemption == "medium" and not self.min_runtime_s and self.estimate_s is None
        free = self.where == _ANYWHERE and self.hardware == _ANY_HARDWARE
        if plain and usual and free and self.requests == _NOTHING and self.needs_devices:
            return ""
        terms = (self.preemption, self.min_runtime_s, self.estimate_s)
        return repr((self.layout, self.requests, self.where, self.topology, self.share, terms, self.hardware))


_EVERY = Select()
_NOTHING = Requests()
_ANYWHERE = Where()
_ANY_HARDWARE = Hardware()


_LONGEST: Final = 200


def is_job_id(text: str) -> bool:
    """Whether it is printable, and one part of a path that does not begin with a dot."""
    return 0 < len(text) <= _LONGEST and text.isprintable() and text[0] != "." and "/" not in text
