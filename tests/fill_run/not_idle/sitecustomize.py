"""On PYTHONPATH of programs of a test: their fillers are in groups that are not idle. A busy machine would give idle ones no time."""

from functools import partial

from unidle.fill.runtime import supervise

supervise.FillSupervisor = partial(supervise.FillSupervisor, idle=False)
