"""Marks: observations of one rank's supervisor, in order.

A supervisor appends marks to the rank's journal as JSON lines; the ordinal of the line is the
mark's sequence number. Times are on the controller's clock (``unidle.clock``).
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

import msgspec

from unidle.jobs import FailureKind

GUESSED: Final = "lines"
"""``o`` of steps read from lines of no known form: they may stop before the rank ends."""


Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""What snapshots of the view can hold. A line of a journal with more is no mark."""


class LastOutput(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the end of a failed rank's output shows; each text is one printable line.

    ``what``: the error, such as ``ValueError: shapes (3,4) and (5,) not aligned``; ``where``: the innermost line
    of the user's own code, such as ``crash.py:5``; ``kind``: a ``unidle.jobs.FailureKind``. ``sort`` is
    ``error``, one that a restart cannot fix (``import``, ``syntax``, ``command``: a program or script that is not
    there), or ``line``: no error that is known, but the last line that may be one. ``symptom``: it follows from
    the failure of another. ``lines``: the last ten.
    """

    what: str = ""
    where: str = ""
    kind: FailureKind = "unknown"
    sort: Literal["error", "import", "syntax", "command", "line"] = "line"
    symptom: bool = False
    lines: tuple[str, ...] = ()


class Mark(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One observation of one rank.

    ``k`` is the kind:

    - ``spawn``: the rank's process exists (``pid``, ``ticks``: its start time in clock ticks)
    - ``step``: step ``n`` was completed at ``t``; ``o`` is the observer; ``v`` is the training loss that was printed
      with it (``text`` is ``loss nan`` or ``loss inf`` where that is no finite number)
    - ``span``: the rank spent ``[t, e)`` on ``w``: ``data``, ``eval``, ``save``, ``restore``, ``compile``,
      ``comm`` or ``wan`` (communication that nothing hides, inside a site or between sites), ``bubble`` (of a
      pipeline), ``again`` (activations made again), ``fill`` or ``discarded`` (of a wait: useful and lost work of a filler),
      ``unready`` (a replica of a service did not answer)
    - ``begin``: it spends time on ``w`` since ``t``, and still does a second later
    - ``ready``: set-up is over, the first step begins; of a service: it answers, on the ``port`` in ``info``
    - ``saved``: a checkpoint became durable at ``t``; ``n`` is its step and ``text`` its path where known
    - ``restored``: the state after step ``n`` was loaded (0: there was none)
    - ``flops``: it did ``n`` floating-point operations in one step
    - ``exit``: the process ended with ``code`` (0 to 255, or minus the signal); ``info`` has ``peak_bytes``, ``cpu_ns``, ``oom``, ...;
      ``last`` is what the end of its output shows, where it failed
    - ``lost``: the supervisor is gone and left no exit; ``text`` describes what is known (``info`` has ``refused`` where the
      machine would not make the rank's part of a device)
    - ``note``: something worth telling in ``text`` (a command that does not exist, log bytes dropped, ...)
    """

    k: str
    t: Int64
    n: Int64 | None = None
    e: Int64 | None = None
    w: str | None = None
    o: str | None = None
    code: Int64 | None = None
    pid: Int64 | None = None
    ticks: Int64 | None = None
    text: str | None = None
    info: dict[str, Int64 | float | str | bool | None] | None = None
    last: LastOutput | None = None
    v: float | None = None
