"""Nouns of work: job specification, gangs, ranks, attempts, states."""

from unidle.jobs.place import RankPlace
from unidle.jobs.reason import Reason
from unidle.jobs.spec import DeviceWish, JobSpec, Layout, Limits, Restart
from unidle.jobs.state import TERMINAL, TRANSITIONS, JobState, transition

__all__ = [
    "TERMINAL",
    "TRANSITIONS",
    "DeviceWish",
    "JobSpec",
    "JobState",
    "Layout",
    "Limits",
    "RankPlace",
    "Reason",
    "Restart",
    "transition",
]
