"""MIG by GPU model: slices, profiles and the places of instances.

The figures are in ``mig.toml`` next to this file, which names its source: NVIDIA's Multi-Instance GPU
User Guide (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/). An instance covers consecutive *memory
slices*. Its profile fixes where it may begin, and two instances never overlap. Compute slices need no check:
no set of instances at allowed places needs more compute than the GPU has.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Final, NamedTuple

from unidle.errors import BadInput
from unidle.fleet import WHOLE_PPM

GIB: Final = 1 << 30
MIB: Final = 1 << 20


class Instance(NamedTuple):
    """A GPU instance: its profile's name, and the memory slice at which it begins."""

    profile: str
    start: int


@dataclass(frozen=True, slots=True)
class MigProfile:
    """One profile of one model. ``compute`` and ``memory`` are numbers of slices, ``id`` is NVML's."""

    name: str
    id: int
    compute: int
    memory: int
    starts: tuple[int, ...]
    most: int

    @property
    def media(self) -> bool:
        """Whether it has the media engines, of which a GPU has one set."""
        return self.name.endswith("+me")

    def mask(self, start: int) -> int:
        """The memory slices that an instance at ``start`` covers, bit ``k`` for slice ``k``."""
        return ((1 << self.memory) - 1) << start


@dataclass(frozen=True, slots=True)
class MigModel:
    """A GPU model that MIG can cut: ``compute`` and ``memory`` slices, ``slice_bytes`` of each of these."""

    name: str
    names: tuple[str, ...]  # one of them occurs in the name that NVML gives
    memory_bytes: tuple[int, int]  # what NVML reports for the whole GPU lies between
    compute: int
    memory: int
    slice_bytes: int
    profiles: tuple[MigProfile, ...]

    @property
    def all_slices(self) -> int:
        """The mask of all memory slices."""
        return (1 << self.memory) - 1

    def knows(self, name: str) -> bool:
        return any(p.name == name for p in self.profiles)

    def profile(self, name: str) -> MigProfile:
        """The profile of that name; :class:`BadInput` when the model has none."""
        for profile in self.profiles:
            if profile.name == name:
                return profile
        raise BadInput(
            f"{self.name} has no such MIG profile",
            field="profile",
            value=name,
            remedy="use one of " + ", ".join(p.name for p in self.profiles),
        )

    def mask(self, instance: Instance) -> int:
        return self.profile(instance.profile).mask(instance.start)

    def bytes_of(self, profile: MigProfile) -> int:
        """Memory that an instance of the profile leaves to programs, at least."""
        return profile.memory * self.slice_bytes

    def compute_ppm(self, profile: MigProfile) -> int:
        """The profile's share of the GPU's compute slices, rounded down."""
        return profile.compute * WHOLE_PPM // self.compute

    def smallest(self, compute_ppm: int, memory_bytes: int) -> MigProfile | None:
        """The profile with the fewest slices that has that much of both; None when none has.

        What a share in ppm loses or gains by rounding does not count.
        """
        fit = [
            p
            for p in self.profiles
            if not p.media
            and self.compute_ppm(p) + self.compute >= compute_ppm
            and self.bytes_of(p) >= memory_bytes
        ]
        return min(fit, key=lambda p: (p.memory, p.compute), default=None)


@cache
def mig_models() -> tuple[MigModel, ...]:
    """The models of the table that unidle ships."""
    return parse_models(files(__package__).joinpath("mig.toml").read_text("utf-8"))


def parse_models(text: str) -> tuple[MigModel, ...]:
    """Models from the text of a table; :class:`BadInput` when one contradicts itself."""
    return tuple(_model(entry) for entry in tomllib.loads(text)["model"])


def model_of(name: str, memory_bytes: int, models: Sequence[MigModel] | None = None) -> MigModel | None:
    """The MIG model of a GPU with NVML's ``name``; None for one that MIG cannot cut, or that is unknown.

    ``memory_bytes`` distinguishes models that share a name. If it is 0 (unknown), the name must be unambiguous:
    it contains the memory, or only one model has it.
    """
    words, alike = _words(name), named_so(name, models)
    if memory_bytes:
        alike = [m for m in alike if m.memory_bytes[0] <= memory_bytes <= m.memory_bytes[1]]
    else:
        alike = [m for m in alike if words >= _words(m.name)] or alike
    return alike[0] if len(alike) == 1 else None


def named_so(name: str, models: Sequence[MigModel] | None = None) -> list[MigModel]:
    """All models that a GPU with this name may be."""
    words = _words(name)
    known = mig_models() if models is None else models
    return [m for m in known if any(words >= _words(name) for name in m.names)]


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.casefold()))


def _model(entry: Mapping[str, Any]) -> MigModel:
    low, high = entry["memory_gib"]
    profiles = tuple(
        MigProfile(p["name"], p["id"], p["compute"], p["memory"], tuple(p["starts"]), p["most"])
        for p in entry["profile"]
    )
    model = MigModel(
        entry["name"],
        tuple(entry["names"]),
        (low * GIB, high * GIB),
        entry["compute"],
        entry["memory"],
        entry["slice_mib"] * MIB,
        profiles,
    )
    for profile in profiles:
        if any(profile.mask(start) & ~model.all_slices for start in profile.starts):
            raise BadInput(
                "an instance would end behind the last memory slice",
                field=f"{model.name} {profile.name} starts",
                value=profile.starts,
                remedy=f"the model has {model.memory} memory slices",
            )
    return model
