"""``unidle check``: whether this node is fit to run a job."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from unidle.cli.common import JsonOption, StoreOption, data_dir, print_json, say, show_table
from unidle.cli.log_source import log_source
from unidle.cli.option_set import with_options
from unidle.cli.times import duration_option
from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.fleet import Fleet, Node, Vendor
    from unidle.fleet.model import FoundGpu
    from unidle.probe.check import NodeReport, Tier
    from unidle.probe.check.model import LogReading

_WORDS = {True: "ok", False: "UNFIT", None: "unknown"}


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("check")(check)


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """Options of the command, in the order of its help."""

    # fmt: off
    tier: Annotated[
        Literal["quick", "standard", "burn-in"],
        typer.Option("--tier", help="Depth of the check: under 2 s, about a minute, or --seconds under load."),
    ] = "quick"
    fleet: Annotated[
        str | None,
        typer.Option("--fleet", metavar="FILE", show_default=False, help="Fleet file that declares what the node should have."),
    ] = None
    node: Annotated[
        str | None,
        typer.Option("--node", metavar="NAME", show_default=False, help="Name of this node in the fleet file; default: its host name, or the only node."),
    ] = None
    directory: Annotated[
        list[str] | None,
        typer.Option("--dir", metavar="DIR", show_default=False, help="Directory that jobs use; may be repeated. Default: unidle's data directory and the temporary directory."),
    ] = None
    used: Annotated[
        list[str] | None,
        typer.Option("--used", metavar="DIR", show_default=False, help="Directory whose file system is in use: its faults in the kernel log count. It is not opened; may be repeated."),
    ] = None
    only: Annotated[
        str | None, typer.Option("--only", metavar="NAME[,..]", show_default=False, help="Run only these checks.")
    ] = None
    thresholds: Annotated[
        str | None,
        typer.Option("--thresholds", metavar="FILE", show_default=False, help="Thresholds that override the default ones."),
    ] = None
    timeout: Annotated[
        float | None,
        duration_option("--timeout", text="Time limit of each check; default: that of the check.", least=0.05, most=86400, show_default=False),
    ] = None
    duration: Annotated[
        float, duration_option("--seconds", "--duration", text="Duration of a burn-in: 600 (seconds), 10m.", most=604800)
    ] = 600
    log_age: Annotated[
        float | None,
        duration_option("--log-age", text="Count kernel log faults of this last time only: 600 (seconds), 10m. Default: since boot.", most=3.2e7, show_default=False),
    ] = None
    log_since: Annotated[
        float | None,
        typer.Option("--log-since", metavar="SECONDS", min=0, show_default=False, help="Count kernel log faults from this moment on only: seconds since boot, as in /proc/uptime."),
    ] = None
    kernel_log: Annotated[
        str | None,
        typer.Option("--kernel-log", metavar="SOURCE", show_default=False, help="Kernel log that is read: kmsg, syslog, journal, off, or a log file. Default: that of the node in the fleet file, else that in UNIDLE_KERNEL_LOG, else kmsg."),
    ] = None
    whole_node: Annotated[
        bool,
        typer.Option("--whole-node", help="Check CPUs and memory of the whole node, also where the control group of this command has less, such as in the pod of an agent."),
    ] = False
    between: Annotated[
        str | None,
        typer.Option("--between", metavar="NODE[,..]|all", show_default=False, help="Check the links between these nodes of a running fleet instead: n1,n[3-6]."),
    ] = None
    store: StoreOption = None
    as_json: JsonOption = False
    # fmt: on


@with_options(options=CheckOptions)
def check(options: CheckOptions) -> None:
    """Check that this node is fit to run a job.

    With --between, check the links between nodes of a fleet instead.
    Exit codes: 0 fit, 1 unfit, 2 bad input, 3 undecided."""
    if options.between is not None:
        from unidle.cli.check_links import check_links

        raise typer.Exit(check_links(options.store, options.between, as_json=options.as_json))
    from unidle.probe.check import Context, check_node, chosen, load_thresholds, shipped

    if options.log_age is not None and options.log_since is not None:
        raise BadInput(
            "--log-age and --log-since exclude each other", field="--log-since", remedy="leave one out"
        )
    probes = chosen(options.tier, _names(options.only))
    book = load_thresholds(options.thresholds) if options.thresholds is not None else shipped()
    declared, nodes, bandwidth_bps = _declared(options.fleet, options.node)
    context = Context(
        node=declared.id if declared else options.node or os.uname().nodename,
        tier=options.tier,
        book=book,
        declared=declared,
        nodes=nodes,
        bandwidth_bps=bandwidth_bps,
        directories=_directories(options.directory),
        used=tuple(map(os.path.abspath, options.used or ())),
        history=data_dir() / "check-history",
        other_gpus=_other_gpus,
        kernel_log=_kernel_log(options, declared),
        whole_node=options.whole_node,
        duration_s=options.duration,
    )
    report = check_node(context, probes, options.timeout)
    if options.as_json:
        print_json(_as_json(report))
    else:
        _say(report, options.tier)
    raise typer.Exit(report.exit_code)


def _other_gpus(root: Path, environ: Mapping[str, str]) -> list[tuple[Vendor, tuple[FoundGpu, ...]]]:
    """Of AMD and Ascend, as the local engine finds them; those that this process hides from itself are counted too."""
    from unidle.engine.local.devices.discovery import find_amd, find_ascend

    shown = {name: value for name, value in environ.items() if not name.endswith("VISIBLE_DEVICES")}
    return [(found.vendor, found.gpus) for found in (find_amd(root, shown), find_ascend(root, shown))]


def _kernel_log(options: CheckOptions, declared: Node | None) -> Callable[[], LogReading] | str:
    """What reads the log of the option, else of the fleet file, else of the environment, or why none is read."""
    from unidle.fleet.policies import KERNEL_LOG_VARIABLE

    watched = declared.watch.kernel_log if declared is not None and declared.watch is not None else ""
    usual = log_source(os.environ.get(KERNEL_LOG_VARIABLE) or None, KERNEL_LOG_VARIABLE) or "kmsg"
    source = log_source(options.kernel_log, "--kernel-log") or watched or usual
    if source == "off":
        return "switched off"

    def read() -> LogReading:
        from unidle.probe.log_reading import read_log

        return read_log(source, options.log_age, options.log_since)

    return read


def _names(only: str | None) -> list[str]:
    if only is None:
        return []
    names = [name.strip() for name in only.split(",")]
    if not all(names):
        raise BadInput("has an empty name", field="--only", value=only, remedy="such as --only storage,nic")
    return names


def _directories(given: list[str] | None) -> tuple[Path, ...]:
    """Those that were named, else where unidle and most jobs write."""
    if given:
        return tuple(Path(name) for name in dict.fromkeys(given))
    home = data_dir()
    while not home.is_dir():
        home = home.parent
    return tuple(dict.fromkeys((home, Path(tempfile.gettempdir()))))


def _declared(path: str | None, name: str | None) -> tuple[Node | None, int, int]:
    """The node of the fleet file that this is, how many there are, and its way up in bit/s (0: not declared)."""
    if path is None:
        return None, 1, 0
    from unidle.files.fleet import load_fleet

    fleet = load_fleet(path)
    by_name = {node.id: node for node in fleet.nodes}
    host = os.uname().nodename
    wanted = name or next((n for n in (host, host.partition(".")[0]) if n in by_name), None)
    if wanted is None and len(by_name) == 1:
        wanted = next(iter(by_name))
    if wanted is None or wanted not in by_name:
        raise BadInput(
            "is not a node of the fleet file" if wanted else "this host is not in the fleet file",
            field="--node", value=wanted or host, remedy=f"use --node with one of {', '.join(list(by_name)[:5])}",
        )  # fmt: skip
    return by_name[wanted], len(by_name), _way_up(fleet, by_name[wanted])


def _way_up(fleet: Fleet, node: Node) -> int:
    own = [link for link in fleet.links if node.id in (link.a, link.b)]
    return sum(link.bandwidth_bps for link in own or [link for link in fleet.links if link.tier == "node"])


def _as_json(report: NodeReport) -> dict[str, object]:
    return {
        "node": report.node,
        "ok": report.ok,
        "checks": [one._asdict() for one in report.checks],
        "absent": [{"name": name, "because": because} for name, because in report.absent],
    }


def _say(report: NodeReport, tier: Tier) -> None:
    rows = [
        [one.name, _WORDS[one.ok], _shown(one.value), _shown(one.threshold), one.unit, one.because]
        for one in sorted(report.checks, key=lambda one: (one.ok is not False, one.ok is not None))
    ]
    show_table(["check", "", "value", "threshold", "unit", "because"], rows)
    if report.absent:
        say(f"not checked: {'; '.join(f'{name} ({because})' for name, because in report.absent)}")
    says = {True: "fit", False: "UNFIT", None: "undecided"}[report.ok]
    say(f"{report.node}: {says} ({tier}, {counted(len(report.checks), 'check')}, {report.seconds:.1f} s)")


def _shown(value: float | str | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"
