"""Which GPUs a job may use: inclusion and exclusion of models and of single GPUs.

Names of models are matched by words, since NVML reports "NVIDIA H100 80GB HBM3" for what people call "H100":
every word of the given name must occur in the model's, in upper or lower case. UUIDs may be cut short, as
in CUDA_VISIBLE_DEVICES, but not to less than 4 characters after "GPU-" or "MIG-".
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from unidle.fleet import Device
from unidle.jobs import Where
from unidle.share.refusal import PartRefused, refused

_SHORTEST: Final = len("GPU-0000")


def may_use(device: Device, where: Where) -> PartRefused | None:
    """None when the job may use the device; else which rule keeps it away."""
    return _by_model(device, where) or _by_uuid(device, where)


def may_use_any(where: Where) -> bool:
    """Whether there is no rule at all."""
    models, uuids = where.models, where.uuids
    return not (models.include or models.exclude or uuids.include or uuids.exclude)


def names_model(name: str, model: str) -> bool:
    """Whether ``name``, as a person writes it, means GPUs of ``model``, as NVML or a fleet file does."""
    wanted = _words(name)
    return bool(wanted) and wanted <= _words(model)


@lru_cache(maxsize=4096)
def the_model(names: tuple[str, ...], models: tuple[str, ...]) -> str | None:
    """The one of these models that is meant by these names, as a person writes them; None where that is none or several."""
    meant = [model for model in models if any(names_model(name, model) for name in names)]
    exact = [model for model in meant if names == (model,)]
    found = exact or meant
    return found[0] if len(found) == 1 else None


def names_uuid(name: str, uuid: str) -> bool:
    """Whether ``name`` is the UUID or a beginning of it."""
    return bool(uuid) and (name == uuid or (len(name) >= _SHORTEST and uuid.startswith(name)))


def _by_model(device: Device, where: Where) -> PartRefused | None:
    rule = where.models
    if banned := _first(n for n in rule.exclude if names_model(n, device.model)):
        return refused("model_excluded", f"{device.id} is a {device.model}, and {banned} is excluded")
    if rule.include and not any(names_model(n, device.model) for n in rule.include):
        what = device.model or "GPU of unknown model"
        return refused(
            "model_not_included", f"{device.id} is a {what}, and only {_list(rule.include)} may be used"
        )
    return None


def _by_uuid(device: Device, where: Where) -> PartRefused | None:
    rule = where.uuids
    if banned := _first(n for n in rule.exclude if names_uuid(n, device.uuid)):
        return refused("uuid_excluded", f"{device.id} is {device.uuid}, and {banned} is excluded")
    if rule.include and not any(names_uuid(n, device.uuid) for n in rule.include):
        what = device.uuid or "a GPU of unknown UUID"
        return refused(
            "uuid_not_included", f"{device.id} is {what}, and only {_list(rule.include)} may be used"
        )
    return None


@lru_cache(maxsize=4096)
def _words(name: str) -> frozenset[str]:
    return frozenset(re.findall(r"[a-z0-9]+", name.casefold()))


def _first(names: Iterable[str]) -> str | None:
    return next(iter(names), None)


def _list(names: tuple[str, ...]) -> str:
    return ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
