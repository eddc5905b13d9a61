"""``unidle kube``: installs and removes unidle on a cluster, and checks it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from unidle.cli.common import JsonOption, print_json, say, say_whole
from unidle.cli.help import Commands
from unidle.cli.option_set import with_options
from unidle.errors import BadInput, CannotRun, UnidleError

if TYPE_CHECKING:
    from unidle.doctor.check import DoctorCheck

kube_app = Commands(help="Install, remove and check unidle on a Kubernetes cluster.")
_CHART: Final = Path(__file__).parents[3] / "deploy" / "kubernetes" / "chart"

KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        show_default=False,
        help="Of the cluster; default: as found by kubectl.",
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        show_default=False,
        help="Context of the kubeconfig; default: its current one.",
    ),
]
NamespaceOption = Annotated[
    str, typer.Option("--namespace", "-n", metavar="NAME", help="Namespace of the controller.")
]
NameOption = Annotated[str, typer.Option("--name", metavar="NAME", help="Name of the release.")]


def register(app: typer.Typer) -> None:
    """Add this file's commands."""
    app.add_typer(kube_app, name="kube")


@dataclass(frozen=True, slots=True)
class InstallOptions:
    """What is installed, in the order of the help."""

    # fmt: off
    image: Annotated[
        str | None, typer.Option("--image", metavar="IMAGE", show_default=False, help="unidle's own image.")
    ] = None
    values: Annotated[
        list[str] | None,
        typer.Option("--values", "-f", metavar="FILE", show_default=False, help="Values of the chart; may be repeated."),
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", show_default=False, help="One value of the chart; may be repeated."),
    ] = None
    chart: Annotated[
        str | None,
        typer.Option("--chart", metavar="DIR", show_default=False, help="The chart; default: that of this checkout."),
    ] = None
    # fmt: on


@kube_app.command("install")
@with_options(options=InstallOptions)
def install(
    options: InstallOptions,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = "unidle-system",
    name: NameOption = "unidle",
) -> None:
    """Install unidle by its Helm chart, or upgrade it.

    The command waits until the controller is ready. It needs the program helm.
    """
    folder = Path(options.chart) if options.chart is not None else _CHART
    if not (folder / "Chart.yaml").exists():
        raise BadInput(
            "is no chart",
            field="--chart",
            value=str(folder),
            remedy="name deploy/kubernetes/chart of unidle's source",
        )
    words = ["upgrade", "--install", name, str(folder), "--namespace", namespace, "--create-namespace"]
    words += [word for path in options.values or () for word in ("--values", path)]
    words += [word for one in options.settings or () for word in ("--set", one)]
    words += ["--set-string", f"image={options.image}"] if options.image else []
    _helm([*words, "--wait", "--timeout", "5m"], kubeconfig, context)
    say(f"{name} is installed in namespace {namespace}")
    say_whole(f"next: unidle kube doctor{_at(kubeconfig, context, namespace, name)}")


@kube_app.command("uninstall")
def uninstall(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = "unidle-system",
    name: NameOption = "unidle",
) -> None:
    """Remove the controller and its rights.

    Custom resources, the volume of the store and the namespace of jobs stay.

    Cancel the jobs before: their pods have a finalizer that only a controller removes."""
    _helm(["uninstall", name, "--namespace", namespace, "--wait", "--timeout", "5m"], kubeconfig, context)
    say(f"{name} is gone from namespace {namespace}")


@kube_app.command("doctor")
def doctor(
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    namespace: NamespaceOption = "unidle-system",
    name: NameOption = "unidle",
    as_json: JsonOption = False,
) -> None:
    """Show what the cluster has for unidle.

    The exit code is 1 if something is missing."""
    from unidle.doctor.cluster import checks
    from unidle.kube.commands import CommandTarget

    found = checks(CommandTarget(kubeconfig, context, f"{namespace}/{name}"))
    if as_json:
        print_json([_plain(check) for check in found])
    else:
        for check in found:
            say(f"{check.state:<8} {check.name:<18} {check.detail}", hang=28)
            if check.state != "ok":
                more = f"; {check.remedy}" if check.remedy else ""
                say(f"{'':<8} {'':<18} needed for {check.needed_for}{more}", hang=28)
    raise typer.Exit(1 if any(check.state == "missing" for check in found) else 0)


def _plain(check: DoctorCheck) -> dict[str, Any]:
    return {name: getattr(check, name) for name in ("name", "state", "detail", "needed_for", "remedy")}


def _at(kubeconfig: str | None, context: str | None, namespace: str, name: str) -> str:
    given = [("--kubeconfig", kubeconfig), ("--context", context),
             ("--namespace", None if namespace == "unidle-system" else namespace),
             ("--name", None if name == "unidle" else name)]  # fmt: skip
    return "".join(f" {option} {value}" for option, value in given if value)


def _helm(words: list[str], kubeconfig: str | None, context: str | None) -> None:
    """Errors: CannotRun without helm; UnidleError with its last line where it fails."""
    helm = shutil.which("helm")
    if helm is None:
        raise CannotRun(
            "the program helm is not on PATH",
            remedy="install it (https://helm.sh), or use kubectl apply -f deploy/kubernetes/install.yaml",
        )
    more = ["--kubeconfig", kubeconfig] if kubeconfig else []
    more += ["--kube-context", context] if context else []
    done = subprocess.run([helm, *words, *more], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["it printed nothing"])[-1]
        raise UnidleError(
            f"helm failed: {last}", field=f"helm {words[0]}", remedy="see kubectl get pods and events there"
        )
