"""Marks: what one rank's supervisor saw, in the order it saw it.

A supervisor appends marks to the rank's journal as JSON lines; the ordinal of the line is the
mark's sequence number. Times are on the controller's clock (``unidle.clock``).
"""

from __future__ import annotations

import msgspec


class Mark(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One observation of one rank.

    ``k`` is the kind:

    - ``spawn``: the rank's process exists (``pid``, ``ticks``: its start time in clock ticks)
    - ``step``: step ``n`` was completed at ``t``; ``o`` says who saw it
    - ``span``: the rank spent ``[t, e)`` on ``w``: ``data``, ``eval``, ``save``, ``restore``, ``compile``,
      ``comm`` or ``wan`` (communication that nothing hides, inside a site or between sites), ``bubble`` (of a
      pipeline) or ``again`` (activations made again)
    - ``begin``: it spends time on ``w`` since ``t``, and still does a second later
    - ``ready``: set-up is over, the first step begins
    - ``saved``: a checkpoint became durable at ``t``; ``n`` is its step and ``text`` its path where known
    - ``restored``: the state after step ``n`` was loaded (0: there was none)
    - ``exit``: the process ended with ``code`` (0 to 255, or minus the signal); ``info`` has ``peak_bytes``, ``cpu_ns``, ``oom``, ...
    - ``lost``: the supervisor is gone and left no exit; ``text`` says what is known (``info`` has ``refused`` where the
      machine would not make the rank's part of a device)
    - ``note``: something worth telling in ``text`` (a command that does not exist, log bytes dropped, ...)
    """

    k: str
    t: int
    n: int | None = None
    e: int | None = None
    w: str | None = None
    o: str | None = None
    code: int | None = None
    pid: int | None = None
    ticks: int | None = None
    text: str | None = None
    info: dict[str, int | float | str | bool | None] | None = None
