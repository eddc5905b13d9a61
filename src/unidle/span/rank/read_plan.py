"""Reads the run plan: bytes in, :class:`unidle.span.rank.plan.RunPlan` or one clear error out."""

from __future__ import annotations

import json
import math
from typing import Any, Final, TypeVar

from unidle.errors import BadInput
from unidle.span.rank.plan import (
    DeviceSpeed,
    ModelSpec,
    Op,
    Outer,
    PlanDevice,
    RunPlan,
    SaveSpec,
    StageLink,
    short,
)

VERSION: Final = 1
_OPS: Final = ("F", "R", "B", "W")
_DTYPES: Final = ("float64", "float32", "bfloat16")
T = TypeVar("T")


def read_plan(path: str) -> RunPlan:
    """The plan in a file. Errors: BadInput naming field, value and remedy."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read())
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error.strerror}", field="PLAN", value=path, remedy="name a run plan"
        ) from None
    except ValueError as error:
        raise BadInput(
            f"is no JSON: {error}", field="PLAN", value=path, remedy="`unidle span run` writes it"
        ) from None
    return plan_from(found)


def plan_from(found: Any) -> RunPlan:
    """The plan in a JSON value. Errors: BadInput."""
    top = _Fields(found, "plan")
    if top.get("version", int) != VERSION:
        raise BadInput(
            "is of another version", field="plan.version", value=found["version"],
            remedy=f"this unidle reads version {VERSION}: use the same one everywhere",
        )  # fmt: skip
    microbatches = tuple(top.numbers("microbatches", least=1))
    chunks = top.whole("chunks", 1, least=1)
    devices = _devices(top, microbatches, chunks)
    stages = len(devices) // len(microbatches)
    changes = _Fields(top.get("changes_semantics", dict, {}), "changes_semantics")
    optimizer = _Fields(top.get("optimizer", dict), "optimizer")
    clip = top.get("clip_norm", (int, float), None)
    if clip is not None and not clip > 0:
        raise BadInput("must be above 0", field="clip_norm", value=clip, remedy="null clips nothing")
    return RunPlan(
        run=top.text("run"), attempt=top.whole("attempt", 0), model=_model(top, stages * chunks),
        loss=top.text("loss"), data=top.text("data"),
        optimizer=optimizer.text("name"), optimizer_arguments=optimizer.get("arguments", dict, {}),
        clip_norm=clip, steps=top.whole("steps", least=1), seed=top.whole("seed", 0),
        microbatch=top.whole("microbatch", least=1), microbatches=microbatches, chunks=chunks, devices=devices,
        links=_links(top, stages, len(microbatches)), cell=_cell(top, len(microbatches)), checkpoint=_keep(top),
        resume=top.get("resume", int, None), pace=_pace(top, stages, len(microbatches)), tls=top.get("tls", dict, None),
        activations=changes.one_of("activations", (None, "bfloat16", "int8")), outer=_outer(changes),
        trace=top.get("trace", bool, False), earlier=_earlier(top, microbatches),
    )  # fmt: skip


def _model(top: _Fields, parts: int) -> ModelSpec:
    model = _Fields(top.get("model", dict), "model")
    cut, end = [], 0
    given = model.get("cut", list, None)
    for k, pair in enumerate(given or ()):
        if not (isinstance(pair, list) and len(pair) == 2 and pair[0] == end < pair[1]):
            raise BadInput(
                f"part {k} must be [{end}, a later layer]", field="model.cut", value=short(pair),
                remedy="give each part the layers [first, end) that follow those before it",
            )  # fmt: skip
        end = pair[1]
        cut.append((int(pair[0]), int(pair[1])))
    if given is not None and len(cut) != parts:
        raise BadInput(
            f"must have {parts} parts: stages times chunks", field="model.cut", value=len(cut),
            remedy="cut the model for this plan's stages",
        )  # fmt: skip
    return ModelSpec(
        model.text("build"), model.get("arguments", dict, {}), str(model.one_of("dtype", _DTYPES)),
        tuple(cut) or None, model.get("digest", str, None),
    )  # fmt: skip


def _devices(top: _Fields, microbatches: tuple[int, ...], chunks: int) -> tuple[PlanDevice, ...]:
    found = []
    for k, each in enumerate(top.get("devices", list)):
        fields = _Fields(each, f"devices.{k}")
        address = fields.get("address", list)
        if not (len(address) == 2 and isinstance(address[0], str) and isinstance(address[1], int)):
            raise BadInput(
                "must be [host, port]", field=f"devices.{k}.address", value=short(address),
                remedy='for instance ["10.0.0.1", 29400]',
            )  # fmt: skip
        device = PlanDevice(
            fields.text("device"), fields.text("site"), fields.whole("pipeline"), fields.whole("stage"),
            (address[0], address[1]), _order(fields), fields.get("joined", bool, False), fields.get("torch_device", str, "cpu"),
        )  # fmt: skip
        found.append(device)
    stages = 1 + max((d.stage for d in found), default=-1)
    wanted = {(p, s) for p in range(len(microbatches)) for s in range(stages)}
    if {(d.pipeline, d.stage) for d in found} != wanted or len(found) != len(wanted) or not found:
        raise BadInput(
            "must be one for each stage of each pipeline in microbatches", field="devices", value=len(found),
            remedy="give pipeline and stage of each, counted from 0",
        )  # fmt: skip
    for device in found:
        _check_order(device, microbatches[device.pipeline], chunks)
    return tuple(found)


def _order(fields: _Fields) -> tuple[Op, ...]:
    found = []
    for each in fields.get("order", list):
        if not (isinstance(each, list) and len(each) in (2, 3) and each[0] in _OPS):
            raise BadInput(
                "an operation must be [F, R, B or W, microbatch, chunk]", field=f"{fields.where}.order", value=short(each),
                remedy='for instance ["F", 0, 0]',
            )  # fmt: skip
        found.append(Op(each[0], int(each[1]), int(each[2]) if len(each) == 3 else 0))
    return tuple(found)


def _check_order(device: PlanDevice, microbatches: int, chunks: int) -> None:
    """Each microbatch once forward, once backward, and in an order that can be."""
    at = {op: k for k, op in enumerate(device.order)}
    problem = "an operation is there twice" if len(at) != len(device.order) else ""
    for microbatch in range(microbatches):
        for chunk in range(chunks):
            places = [at.pop(Op(kind, microbatch, chunk), None) for kind in _OPS]
            forward, _, backward, weight = places
            told = [p for p in places if p is not None]
            if forward is None or backward is None:
                problem = problem or f"microbatch {microbatch} of chunk {chunk} has no F or no B"
            elif weight is None and not device.joined:
                problem = problem or f"microbatch {microbatch} of chunk {chunk} has no W, and B is not joined"
            elif told != sorted(told):
                problem = (
                    problem or f"microbatch {microbatch} of chunk {chunk} is not in the order F, R, B, W"
                )
    if at:
        problem = problem or f"has {next(iter(at))}, which is no microbatch or chunk of it"
    if problem:
        raise BadInput(
            problem, field=f"order of {device.name}", value=len(device.order), remedy="make the plan again"
        )


def _links(top: _Fields, stages: int, pipelines: int) -> dict[tuple[int, ...], StageLink]:
    found: dict[tuple[int, ...], StageLink] = {}
    for k, each in enumerate(top.get("links", list, [])):
        fields = _Fields(each, f"links.{k}")
        a, b = fields.whole("from"), fields.whole("to")
        if max(a, b) >= stages or a == b:
            raise BadInput("must join two stages", field=f"links.{k}", value=[a, b], remedy="count from 0")
        link = StageLink(
            fields.get("wan", bool, False), fields.whole("flows", 1, least=1),
            fields.one_of("share", ("own", "turns"), "own") == "turns", fields.whole("pieces", 1, least=1),
            fields.whole("latency_ns", 0), fields.whole("rate_bytes_per_s", 0), fields.whole("chunk_bytes", 0),
        )  # fmt: skip
        pair = (min(a, b), max(a, b))
        own = fields.numbers("pipelines") if "pipelines" in each else None
        if own is not None and not all(p < pipelines for p in own):
            raise BadInput(
                f"must be below {pipelines}", field=f"links.{k}.pipelines", value=short(own), remedy="count from 0"
            )  # fmt: skip
        for key in [pair] if own is None else [(*pair, p) for p in own]:
            if found.setdefault(key, link) != link:
                raise BadInput(
                    "is there twice and differs", field=f"links.{k}", value=[a, b], remedy="give each pair once"
                )  # fmt: skip
    return found


def _earlier(top: _Fields, microbatches: tuple[int, ...]) -> tuple[tuple[int, tuple[int, ...]], ...]:
    """Up to which step pipelines had other numbers of microbatches, as many together."""
    found = []
    for k, each in enumerate(top.get("earlier", list, [])):
        fields = _Fields(each, f"earlier.{k}")
        shared = tuple(fields.numbers("microbatches", least=1))
        if (len(shared), sum(shared)) != (len(microbatches), sum(microbatches)):
            raise BadInput(
                "must be as many pipelines and as many microbatches together as in the plan", field=f"earlier.{k}.microbatches",
                value=short(shared), remedy=f"share out {sum(microbatches)} to {len(microbatches)}",
            )  # fmt: skip
        found.append((fields.whole("until", least=0), shared))
    return tuple(found)


def _cell(top: _Fields, pipelines: int) -> int:
    cell = top.whole("cell", 1, least=1)
    if pipelines % cell:
        raise BadInput(
            f"must divide the {pipelines} pipelines", field="cell", value=cell, remedy="1 shares no links"
        )
    return cell


def _keep(top: _Fields) -> SaveSpec | None:
    found = top.get("checkpoint", dict, None)
    if found is None:
        return None
    fields = _Fields(found, "checkpoint")
    return SaveSpec(
        fields.text("directory"), fields.whole("every", least=1), fields.whole("keep", 2, least=1)
    )


def _pace(top: _Fields, stages: int, pipelines: int) -> DeviceSpeed | None:
    found = top.get("pace", dict, None)
    if found is None:
        return None
    fields = _Fields(found, "pace")
    times = []
    for name in ("forward_ns", "backward_ns", "weight_ns", "recompute_ns"):
        values = fields.numbers(name) if name in found else (0,) * stages
        if len(values) != stages:
            raise BadInput(
                f"must have {stages} numbers, one for each stage", field=f"pace.{name}", value=len(values),
                remedy="give nanoseconds by stage",
            )  # fmt: skip
        times.append(tuple(values))
    speeds = tuple(float(each) for each in fields.get("speeds", list, ()) if isinstance(each, int | float))
    if "speeds" in found and not (len(speeds) == len(found["speeds"]) == pipelines and min(speeds) > 0):
        raise BadInput(
            f"must have {pipelines} numbers above 0, one for each pipeline", field="pace.speeds", value=short(found["speeds"]),
            remedy="1 is the speed of the stages' times",
        )  # fmt: skip
    forward, backward, weight, recompute = times
    return DeviceSpeed(forward, backward, weight, recompute, speeds)


def _outer(changes: _Fields) -> Outer | None:
    found = changes.get("outer", dict, None)
    if found is None:
        return None
    fields = _Fields(found, "changes_semantics.outer")
    numbers = [float(fields.get(name, (int, float))) for name in ("lr", "momentum")]
    if not (numbers[0] > 0 and 0 <= numbers[1] < 1):
        raise BadInput(
            "lr must be above 0, momentum 0 to less than 1", field="changes_semantics.outer", value=numbers,
            remedy="lr 0.7 and momentum 0.9 are usual",
        )  # fmt: skip
    return Outer(fields.whole("every", least=1), numbers[0], numbers[1])


_MISSING: Final[Any] = object()


class _Fields:
    """The fields of one JSON object, each taken with a check."""

    def __init__(self, found: Any, where: str) -> None:
        if not isinstance(found, dict):
            raise BadInput(
                "must be an object", field=where, value=short(found), remedy="see the reference of the run plan"
            )  # fmt: skip
        self._found, self.where = found, where

    def get(self, name: str, of: Any, default: Any = _MISSING) -> Any:
        value = self._found.get(name, default)
        if value is default and default is not _MISSING:
            return value
        wrong_bool = isinstance(value, bool) and of is not bool
        if value is _MISSING or not isinstance(value, of) or wrong_bool:
            what = of.__name__ if isinstance(of, type) else "number"
            raise BadInput(
                "is missing" if value is _MISSING else f"must be of type {what}", field=f"{self.where}.{name}",
                value=None if value is _MISSING else short(value), remedy="see the reference of the run plan",
            )  # fmt: skip
        if isinstance(value, float) and not math.isfinite(value):
            raise BadInput(
                "must be finite", field=f"{self.where}.{name}", value=value, remedy="give a number"
            )
        return value

    def text(self, name: str) -> str:
        value: str = self.get(name, str)
        if not value:
            raise BadInput("is empty", field=f"{self.where}.{name}", remedy="give a text")
        return value

    def whole(self, name: str, default: Any = _MISSING, least: int = 0) -> int:
        value: int = self.get(name, int, default)
        if value < least:
            raise BadInput(
                f"must be {least} or more", field=f"{self.where}.{name}", value=value, remedy="correct it"
            )
        return value

    def numbers(self, name: str, least: int = 0) -> list[int]:
        found: list[int] = self.get(name, list)
        if not found or any(isinstance(n, bool) or not isinstance(n, int) or n < least for n in found):
            raise BadInput(
                f"must be whole numbers of {least} or more", field=f"{self.where}.{name}", value=short(found),
                remedy="correct them",
            )  # fmt: skip
        return found

    def one_of(self, name: str, choices: tuple[T, ...], default: Any = None) -> T:
        value: T = self._found.get(name, default)
        if value not in choices:
            raise BadInput(
                f"must be one of {', '.join(str(c) for c in choices)}", field=f"{self.where}.{name}", value=short(value),
                remedy="choose one",
            )  # fmt: skip
        return value
