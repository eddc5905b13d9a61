"""``--kubeconfig`` and ``--context``: every command that reads a store takes that of a cluster's controller instead.

A command has ``--store`` by :data:`unidle.cli.common.StoreOption` in its signature. It gets these two next to it, and in its
place the address ``kubernetes://CONTEXT``, which :func:`unidle.store.open.open_store` opens like any other.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, get_type_hints

import typer

from unidle.errors import BadInput

_NAMES: Final = ("kubeconfig", "kube_context")
_CTX: Final = "cluster_ctx"


def _contexts(ctx: Any, incomplete: str) -> list[str]:
    """Contexts of the kubeconfig, for a shell."""
    from contextlib import suppress

    with suppress(Exception):
        from unidle.kube.kubeconfig import context_names

        given = context_names(ctx.params.get("kubeconfig"))
        return [name for name in given if name.startswith(incomplete)]
    return []


_Kubeconfig = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig", metavar="FILE", show_default=False,
        help="Instead of --store: the controller of this cluster. `in-cluster`: of that of this pod.",
    ),
]  # fmt: skip
_Context = Annotated[
    str | None,
    typer.Option(
        "--context", metavar="NAME", show_default=False, autocompletion=_contexts,
        help="Instead of --store: the controller of the cluster of this context of the kubeconfig, which is found as by kubectl.",
    ),
]  # fmt: skip


def with_cluster(command: Callable[..., Any]) -> Callable[..., Any]:
    """The command, with the options of a cluster if it reads a store."""
    from unidle.cli.common import StoreOption

    hints = get_type_hints(command, include_extras=True)
    mark = StoreOption.__metadata__[0]  # type: ignore[attr-defined]
    store = next((name for name, hint in hints.items() if mark in getattr(hint, "__metadata__", ())), None)
    if store is None:
        return command
    known = inspect.signature(command).parameters
    ctx = next((name for name in known if hints.get(name) is typer.Context), None)

    @functools.wraps(command)
    def wrapper(**given: Any) -> Any:
        context: typer.Context = given[_CTX if ctx is None else ctx]
        given.pop(_CTX, None)
        kubeconfig, name = (given.pop(each) for each in _NAMES)
        if kubeconfig is not None or name is not None:
            given[store] = _address(context, store, kubeconfig, name)
        return command(**given)

    parameters = list(_parameters(known, hints, store, own_ctx=ctx is None))
    wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {one.name: one.annotation for one in parameters}
    return wrapper


def _address(context: typer.Context, store: str, kubeconfig: str | None, name: str | None) -> str:
    source = context.get_parameter_source(store)
    if source is not None and source.name == "COMMANDLINE":
        other = "--context" if kubeconfig is None else "--kubeconfig"
        raise BadInput("cannot be used together", field=f"--store, {other}", remedy="leave one out")
    from unidle.store.cluster import cluster_address

    return cluster_address(kubeconfig, name)


def _parameters(
    known: Any, hints: dict[str, Any], store: str, *, own_ctx: bool
) -> Iterator[inspect.Parameter]:
    """Those of the command, by name, with the new ones after the store."""

    def one(name: str, annotation: Any, default: Any = inspect.Parameter.empty) -> inspect.Parameter:
        return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    if own_ctx:
        yield one(_CTX, typer.Context)
    for parameter in known.values():
        yield one(parameter.name, hints[parameter.name], parameter.default)
        if parameter.name == store:
            for name, annotation in zip(_NAMES, (_Kubeconfig, _Context), strict=True):
                yield one(name, annotation, None)
