"""Settings of a run from the environment, such as its secret."""

from __future__ import annotations

import contextlib
import os

from unidle.errors import BadInput
from unidle.span.wan.sockets import control


def secret_of_run() -> str:
    """From the environment. Errors: BadInput."""
    secret = os.environ.get("UNIDLE_SPAN_SECRET", "")
    if not secret:
        raise BadInput(
            "is not set", field="UNIDLE_SPAN_SECRET", remedy="give all ranks of the run the same secret in the environment"
        )  # fmt: skip
    return secret


def _seconds(name: str, default: float) -> float:
    """A number of seconds above 0 from the environment. Errors: BadInput."""
    text = os.environ.get(name, "")
    value = -1.0
    with contextlib.suppress(ValueError):
        value = float(text) if text else default
    if not 0 < value < float("inf"):
        raise BadInput("must be a number of seconds above 0", field=name, value=text, remedy="unset it")
    return value


def congestion_of_run() -> str:
    """``UNIDLE_SPAN_CONGESTION``, or a steady one, or empty for the kernel's own. Errors: BadInput."""
    wanted = os.environ.get("UNIDLE_SPAN_CONGESTION", "")
    try:
        return control(wanted)
    except ValueError as error:
        raise BadInput(
            f"cannot be used here: {error}", field="UNIDLE_SPAN_CONGESTION", value=wanted,
            remedy="name one of these, or unset it",
        ) from None  # fmt: skip


def check_environment() -> None:
    """Of a launcher: ranks have the same and would end with it. Errors: BadInput."""
    congestion_of_run()
    give_up_s()
    start_s()


def give_up_s() -> float:
    """``UNIDLE_SPAN_GIVE_UP_S``: how long a link may be cut. Errors: BadInput."""
    return _seconds("UNIDLE_SPAN_GIVE_UP_S", 30.0)


def start_s() -> float:
    """``UNIDLE_SPAN_START_S``: how long ranks wait for each other. Errors: BadInput."""
    return _seconds("UNIDLE_SPAN_START_S", 300.0)
