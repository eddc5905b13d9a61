"""GPUs and their driver: how many there are, whether they are well, who else is on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from unidle.fleet.nvml import Nvml
from unidle.fleet.pci import read_text
from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, least, most, unknown
from unidle.probe.check.nvml import Missing, NvmlGpu, ask, constant, field_value, filled, gpus, opened
from unidle.words import counted

Look = Callable[[Context, Nvml, list[NvmlGpu]], Iterator[Check]]
_NVIDIA: Final = "0x10de"
_GPU_CLASSES: Final = ("0x0300", "0x0302")  # VGA and 3D controllers
# nvmlClocksEventReasons: those that take speed away for a fault of power, cooling or board. A software power cap is
# what a busy GPU always has.
BAD_REASONS: Final = {
    0x08: "hardware slowdown",
    0x20: "thermal slowdown by software",
    0x40: "thermal slowdown by hardware",
    0x80: "power brake",
}


def nvidia_on_pci(sys: Path) -> list[str]:
    """PCI addresses of NVIDIA's GPUs as the kernel lists them, with or without a driver."""
    return [
        device.name
        for device in sorted((sys / "bus/pci/devices").glob("*"))
        if read_text(device / "vendor") == _NVIDIA and read_text(device / "class").startswith(_GPU_CLASSES)
    ]


def no_nvidia(context: Context, name: str, because: str) -> Outcome:
    """NVML cannot be asked: nothing is there to ask about, or it could not be determined."""
    if not context.declared_gpus("nvidia") and not nvidia_on_pci(context.sys):
        return Absent("no NVIDIA GPU here, and none is declared")
    return ProbeResult((unknown(name, because),))


def devices(context: Context) -> Outcome:
    """Found against declared, and against what the model's nodes have where nothing is declared."""
    told: Counter[str] = Counter()
    models: Counter[str] = Counter()
    problems: list[str] = []
    on_pci = nvidia_on_pci(context.sys)
    try:
        with opened(context.nvml) as nvml:
            listed = list(gpus(nvml))
            count = nvml.nvmlDeviceGetCount()
            told["nvidia"] = len(listed)
            models.update(gpu.model for gpu in listed)
            if len(listed) < count:
                problems.append(f"{count - len(listed)} of NVML's {count} GPUs do not answer")
    except Missing as error:
        if on_pci or context.declared_gpus("nvidia"):
            problems.append(str(error))
    if len(on_pci) > told["nvidia"]:
        problems.append(f"PCI lists {counted(len(on_pci), 'GPU')} of NVIDIA, its driver {told['nvidia']}")
    for vendor, others in context.other_gpus(context.root, context.environ):
        told[vendor] = len(others)
        models.update(gpu.model for gpu in others)
    return ProbeResult((_count(context, told, models, problems),))


def _count(context: Context, told: Counter[str], models: Counter[str], problems: list[str]) -> Check:
    total = sum(told.values())
    says = ", ".join(f"{n} x {model}" for model, n in models.items()) or "no GPU"
    declared = Counter(device.vendor for device in context.declared_gpus())
    if declared:
        short = [f"{v}: {told[v]} of {n}" for v, n in declared.items() if told[v] < n]
        wanted: float | None = sum(declared.values())
        says += f"; short of {', '.join(short)}" if short else "; as declared"
    else:
        short = []
        wanted = context.limits(next(iter(models), "")).devices if models else None
        if context.declared is not None:
            cpus = len(context.declared.devices)
            says += f"; {counted(cpus, 'CPU device')} declared, without hardware of their own"
    ok = not short and not problems and (wanted is None or total >= wanted)
    says = "; ".join([says, *problems])
    return Check("devices", ok, total, "devices", None if wanted is None else int(wanted), says)


def driver(context: Context) -> Outcome:
    """Whether NVML opens; persistence and NVSwitch fabric of each GPU where its model needs them."""
    try:
        with opened(context.nvml) as nvml:
            version = ask(nvml, "nvmlSystemGetDriverVersion")
            found = list(gpus(nvml))
            checks = [
                Check(
                    "driver",
                    True,
                    str(version or "?"),
                    "version",
                    None,
                    f"{counted(len(found), 'GPU')} answered",
                )
            ]
            checks += _persistence(context, nvml, found)
            checks += _fabric(context, nvml, found)
            return ProbeResult(tuple(checks))
    except Missing as error:
        outcome = no_nvidia(context, "driver", str(error))
        if isinstance(outcome, ProbeResult):
            return ProbeResult((Check("driver", False, None, "version", None, str(error)),))
        return outcome


def _persistence(context: Context, nvml: Nvml, found: Iterable[NvmlGpu]) -> Iterator[Check]:
    modes = {gpu: ask(nvml, "nvmlDeviceGetPersistenceMode", gpu.handle) for gpu in found}
    known = {gpu: mode for gpu, mode in modes.items() if mode is not None}
    if not known:
        return
    off = [gpu.name for gpu, mode in known.items() if not mode]
    needed = any(context.limits(gpu.model).persistence_required for gpu in known)
    says = f"off on {', '.join(off)}: the driver unloads between jobs" if off else "on for all"
    yield Check(
        "driver.persistence",
        not (off and needed),
        len(known) - len(off),
        "GPUs",
        len(known) if needed else None,
        says,
    )


def _fabric(context: Context, nvml: Nvml, found: Iterable[NvmlGpu]) -> Iterator[Check]:
    """Registration with the fabric manager (nvmlDeviceGetGpuFabricInfo): 3 is done, a status of 0 is well."""
    states = {gpu: _fabric_state(nvml, gpu) for gpu in found}
    needed = [gpu for gpu in states if context.limits(gpu.model).fabric_required]
    known = {gpu: state for gpu, state in states.items() if state is not None}
    if not known:
        if len(needed) > 1:
            yield unknown(
                "driver.fabric", "the driver does not report whether the fabric manager has set up the links"
            )
        return
    bad = [f"{gpu.name} ({says})" for gpu, says in known.items() if says]
    because = f"not set up on {', '.join(bad)}: is the fabric manager running?" if bad else "set up on all"
    yield Check("driver.fabric", not bad, len(known) - len(bad), "GPUs", len(known), because)


def _fabric_state(nvml: Nvml, gpu: NvmlGpu) -> str | None:
    """Empty when done; None where the GPU has no fabric or does not tell."""
    info = filled(nvml, "nvmlDeviceGetGpuFabricInfo", gpu.handle, "c_nvmlGpuFabricInfo_t")
    names = {1: "not started", 2: "in progress", 3: ""}
    if info is None or info.state not in names:
        return None
    if info.state == constant(nvml, "NVML_GPU_FABRIC_STATE_COMPLETED") and info.status:
        return f"failed with {info.status}"
    return names[info.state]


def clocks(context: Context) -> Outcome:
    """Reasons for which the driver holds clocks down, and the highest clock against the model's."""
    return each_gpu(context, "clocks", _clocks)


def _clocks(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    held: list[str] = []
    asked = 0
    for gpu in found:
        reasons = throttle_reasons(nvml, gpu)
        if reasons is None:
            continue
        asked += 1
        bad = [says for bit, says in BAD_REASONS.items() if reasons & bit]
        if bad:
            held.append(f"{gpu.name}: {', '.join(bad)}")
    if not asked:
        yield unknown("clocks", "the driver reports no reasons for its clocks")
        return
    yield most(
        "clocks", len(held), "GPUs held down", 0, "; ".join(held) or f"{counted(asked, 'GPU')} not held down"
    )
    ratios = {gpu: _allowed_clock(nvml, gpu) for gpu in found}
    known = {gpu: ratio for gpu, ratio in ratios.items() if ratio is not None}
    if known:
        worst = min(known, key=lambda gpu: known[gpu])
        limit = context.limits(worst.model).gpu_clock_ratio
        yield least("clocks.limit", known[worst], "of the highest", limit, f"least on {worst.name}")


def throttle_reasons(nvml: Nvml, gpu: NvmlGpu) -> int | None:
    """The bits of nvmlClocksEventReasons."""
    for function in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
        reasons = ask(nvml, function, gpu.handle)
        if reasons is not None:
            return int(reasons)
    return None


def _allowed_clock(nvml: Nvml, gpu: NvmlGpu) -> float | None:
    """The application clock of the SMs over their highest one."""
    sm = constant(nvml, "NVML_CLOCK_SM")
    allowed = ask(nvml, "nvmlDeviceGetApplicationsClock", gpu.handle, sm)
    highest = ask(nvml, "nvmlDeviceGetMaxClockInfo", gpu.handle, sm)
    return allowed / highest if allowed and highest else None


def heat(context: Context) -> Outcome:
    """Temperatures and power limits."""
    return each_gpu(context, "heat", _heat)


def _heat(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    core = {
        g: ask(nvml, "nvmlDeviceGetTemperature", g.handle, constant(nvml, "NVML_TEMPERATURE_GPU"))
        for g in found
    }
    memory = {g: field_value(nvml, g.handle, "NVML_FI_DEV_MEMORY_TEMP") for g in found}
    for name, degrees, field in (
        ("heat", core, "gpu_temperature_c"), ("heat.memory", memory, "gpu_memory_temperature_c"),
    ):  # fmt: skip
        known = {gpu: int(value) for gpu, value in degrees.items() if value}
        if known:
            hottest = max(known, key=lambda gpu: known[gpu])
            limit = getattr(context.limits(hottest.model), field)
            yield most(name, known[hottest], "C", limit, f"hottest is {hottest.name}")
        elif name == "heat":
            yield unknown(name, "the driver reports no temperature")
    limits: dict[NvmlGpu, float] = {}
    for gpu in found:
        enforced = ask(nvml, "nvmlDeviceGetEnforcedPowerLimit", gpu.handle)
        default = ask(nvml, "nvmlDeviceGetPowerManagementDefaultLimit", gpu.handle)
        if enforced and default:
            limits[gpu] = enforced / default
    if limits:
        worst = min(limits, key=lambda gpu: limits[gpu])
        ratio = context.limits(worst.model).gpu_power_limit_ratio
        yield least("heat.power_limit", limits[worst], "of the default", ratio, f"lowest on {worst.name}")


def leftovers(context: Context) -> Outcome:
    """Processes on the GPUs that belong to no job here, and memory in use that no process holds."""
    return each_gpu(context, "leftovers", _leftovers)


def _leftovers(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    strangers: list[str] = []
    lost: dict[NvmlGpu, int] = {}
    told = False
    for gpu in found:
        processes = ask(nvml, "nvmlDeviceGetComputeRunningProcesses", gpu.handle)
        if processes is None:
            continue
        told = True
        strangers += [f"{gpu.name}: {p.pid} {_command(context, p.pid)}" for p in processes if p.pid not in context.known_pids]  # fmt: skip
        memory = ask(nvml, "nvmlDeviceGetMemoryInfo", gpu.handle)
        if not processes and memory is not None:
            lost[gpu] = int(memory.used)
    if not told:
        yield unknown("leftovers", "the driver does not list processes")
        return
    yield most(
        "leftovers", len(strangers), "processes", 0, "; ".join(strangers[:8]) or "no foreign process on a GPU"
    )
    if lost:
        worst = max(lost, key=lambda gpu: lost[gpu])
        limit = context.limits(worst.model).idle_gpu_memory_bytes
        yield most(
            "leftovers.memory", lost[worst], "bytes", limit, f"{worst.name} has the most in use by no process"
        )


def _command(context: Context, pid: int) -> str:
    return read_text(context.proc / str(pid) / "comm") or "(not visible from here)"


def each_gpu(context: Context, name: str, look: Look) -> Outcome:
    """``look`` at the GPUs of NVML, or say that there are none."""
    try:
        with opened(context.nvml) as nvml:
            found = list(gpus(nvml))
            if not found:
                return no_nvidia(context, name, "NVML lists no GPU that answers")
            return ProbeResult(tuple(look(context, nvml, found)))
    except Missing as error:
        return no_nvidia(context, name, str(error))
