"""``unidle check --between``: the links between nodes of a running fleet, measured by their agents."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Final

from unidle.cli.common import print_json, read_store, read_view, say
from unidle.errors import BadInput, CannotRun
from unidle.fleet.policies import Between
from unidle.login import login_name

if TYPE_CHECKING:
    from unidle.store.protocol import Store
    from unidle.view.state import View

_FIELD: Final = "--between"
_LOOK_EVERY_S: Final = 0.1
_MORE_S: Final = (
    30.0  # than the time limit of the check: for the controller to take the request, and hosts to answer
)


def check_links(store: str | None, text: str, *, as_json: bool) -> int:
    """Have the controller check them, and print the result; the exit code.

    Errors: :class:`BadInput` for names that the fleet does not have, or what the controller refuses;
    :class:`CannotRun` without a controller.
    """
    import msgspec

    from unidle.control.nodes.remedies import GuardRequest
    from unidle.events import types as ev

    opened = read_store(store, requests=True)
    view = read_view(opened)
    nodes = _nodes(view, text)
    if not view.running:
        raise CannotRun(
            "no controller runs on this store", remedy="start one with `unidle up --listen HOST:PORT`"
        )
    name = secrets.token_hex(8)
    request = GuardRequest("links", "", login_name(), text=name, nodes=nodes)
    opened.request("guard", msgspec.json.encode(request))
    found = _result(opened, view, name)
    if not isinstance(found, ev.LinksChecked):
        raise CannotRun(
            "no result came in time", remedy="look at `unidle guard nodes` and the log of `unidle up`"
        )
    if as_json:
        told = {"nodes": found.nodes, "ok": found.fit, "bad": found.bad, "because": found.because}
        print_json(told)
    else:
        words = {True: "fit", False: f"UNFIT: {', '.join(found.bad)}", None: "undecided"}[found.fit]
        say(f"{words}: {found.because}")
    return {True: 0, False: 1, None: 3}[found.fit]


def _nodes(view: View, text: str) -> tuple[str, ...]:
    from unidle.files.values import expand

    known = [node.id for node in view.fleet.nodes]
    if text == "all":
        names = known
    else:
        try:
            names = [name for part in _parts(text) for name in expand(part, len(known) + 1)]
        except ValueError as error:
            raise BadInput(str(error), field=_FIELD, value=text, remedy="for instance n1,n[3-6]") from None
    unknown = [name for name in names if name not in view.nodes]
    if unknown:
        remedy = f"for instance {known[0]}" if known else "start a controller, and let hosts join"
        raise BadInput("the fleet has no such node", field=_FIELD, value=unknown[0], remedy=remedy)
    if len(set(names)) < 2:
        raise BadInput(
            "needs two nodes or more", field=_FIELD, value=text, remedy="for instance n1,n2, or all"
        )
    return tuple(dict.fromkeys(names))


def _parts(text: str) -> list[str]:
    """At the commas that are in no brackets."""
    parts, depth = [""], 0
    for char in text:
        depth += (char == "[") - (char == "]")
        if char == "," and not depth:
            parts.append("")
        else:
            parts[-1] += char
    return [part.strip() for part in parts]


def _result(store: Store, view: View, name: str) -> object:
    """The event with the result of the request; None where none came in time."""
    from unidle.events import types as ev

    policy = view.fleet.guard.between or Between()
    until_s = time.monotonic() + policy.timeout_ns / 1e9 + _MORE_S
    seen = view.seq
    while time.monotonic() < until_s:
        for event in store.read(after=seen):
            seen = event.seq
            if event.kind not in ("links_checked", "request_refused"):
                continue
            said = ev.decode(event.kind, event.body, event.seq)
            if isinstance(said, ev.RequestRefused) and name in said.because.text:
                why = said.because.text.removesuffix(f" [{name}]")
                raise BadInput(why, field=_FIELD, remedy="see `unidle guard nodes`")
            if isinstance(said, ev.LinksChecked) and said.request == name:
                return said
        time.sleep(_LOOK_EVERY_S)
    return None
