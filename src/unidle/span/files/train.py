"""From a span file with a ``train`` section to what is to be trained and where."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from unidle.files.check import convert
from unidle.files.document import Bounds, Document, Path
from unidle.files.load import base_dir_of, load_document
from unidle.span.files.file import SpanFile
from unidle.span.files.layers import measured_of
from unidle.span.files.schedule import schedules_named
from unidle.span.files.setting import setting_of, shares_of
from unidle.span.files.train_file import TrainPart
from unidle.span.model.setting import Setting
from unidle.span.model.training import Saving, Training
from unidle.span.plan.partition import even_cut
from unidle.span.plan.robust import robust
from unidle.span.simulate.schedules import Schedule
from unidle.span.simulate.uneven import Modelled, PipelineShares, simulated
from unidle.words import counted

DEVICES_MOST: Final = 4096


@dataclass(frozen=True, slots=True)
class RunRequest:
    """A file as it is to be run. ``shares``: what each pipeline does, None if they are equal."""

    setting: Setting
    training: Training
    schedule: Schedule
    shares: PipelineShares | None = None

    def simulated(self) -> Modelled:
        """One step. Errors: :class:`unidle.errors.BadInput`."""
        return simulated(self.setting, self.schedule, self.shares)


def load_run(path: str | os.PathLike[str]) -> RunRequest:
    """The training run that the span file ``path`` declares; ``-`` is standard input.

    Errors: :class:`unidle.errors.BadInput`, with the line.
    """
    return run_of(load_document(path, what="span", bounds=Bounds()), base_dir_of(path))


def run_of(document: Document, base: str) -> RunRequest:
    """The same of a document that was read; paths in it are relative to ``base``."""
    setting = replace(setting_of(document, unequal=True), wide=False)
    shares = shares_of(document, setting)
    file = convert(document, SpanFile, what="span")
    part = file.train
    if part is None:
        raise document.error(
            ("train",), "the section is missing",
            remedy="say what to train: train: {model: {build: model.py:build}, data: ..., loss: ..., steps: 20}",
        )  # fmt: skip
    for name in ("data", "loss", "steps"):
        if getattr(part, name) is None:
            raise document.error(
                ("train", name), "the field is missing", remedy="a run needs data, loss and steps"
            )
    schedule = schedules_named(_placed(part.schedule, base), field="train.schedule")
    if len(schedule) != 1:
        raise document.error(
            ("train", "schedule"), "must be one", value=part.schedule, remedy="a run follows one schedule"
        )
    if setting.devices > DEVICES_MOST:
        raise document.error(
            ("pipelines",), f"{counted(setting.devices, 'device')} are more than the {DEVICES_MOST} of a run",
            value=setting.pipelines, remedy="`unidle span simulate` takes larger ones",
        )  # fmt: skip
    _cut(document, file, part, schedule[0], setting)
    _semantics(document, part, setting, shares)
    if shares is not None:
        _cells(document, setting, shares)
    return RunRequest(setting, _training(document, file, part, base, setting), for_run(schedule[0]), shares)


def for_run(schedule: Schedule) -> Schedule:
    """The schedule that searches leaves room for transfers that come late; the others are what they are."""
    return robust(schedule) if schedule.name == "unidle" else schedule


def _placed(schedule: str, base: str) -> str:
    return os.path.join(base, schedule) if ".py:" in schedule else schedule  # noqa: PTH118


def _training(document: Document, file: SpanFile, part: TrainPart, base: str, setting: Setting) -> Training:
    def function(text: str, *where: str) -> str:
        name, _, attribute = text.rpartition(":")
        return f"{_file(document, ('train', *where), base, name)}:{attribute}"

    own = (
        part.optimizer.name
        if ".py:" not in part.optimizer.name
        else function(part.optimizer.name, "optimizer", "name")
    )
    saving = None
    if part.checkpoint is not None:
        given = part.checkpoint
        directory = os.path.join(base, given.directory)  # noqa: PTH118
        saving = Saving(os.path.abspath(directory), given.every, given.keep)  # noqa: PTH100
    tls = None
    if part.tls is not None:
        tls = {
            name: _file(document, ("train", "tls", name), base, getattr(part.tls, name))
            for name in ("certificate", "key", "authority")
        }
    assert part.data is not None
    assert part.loss is not None
    assert part.steps is not None
    measured = measured_of(document, file)
    default = file.model.microbatch if file.model is not None else measured.microbatch if measured else 1
    cut = part.cut or file.cut
    if cut is None and measured is not None:
        cut = even_cut(measured, file.stages, None)
    semantics = {} if part.changes_semantics is None else msgspec.to_builtins(part.changes_semantics)
    return Training(
        build=function(part.model.build, "model", "build"), data=function(part.data, "data"),
        loss=function(part.loss, "loss"), steps=part.steps, arguments=part.model.arguments, dtype=part.model.dtype,
        optimizer=own, optimizer_arguments=part.optimizer.arguments, clip_norm=part.clip_norm, seed=part.seed,
        microbatch=part.microbatch or default, cut=cut, schedule=part.schedule, saving=saving, paced=part.pace,
        device=part.device, tls=tls, semantics=semantics, hosts=_hosts(document, file, setting),
    )  # fmt: skip


def _file(document: Document, where: Path, base: str, name: str) -> str:
    path = os.path.abspath(os.path.join(base, name))  # noqa: PTH100, PTH118
    if not os.path.isfile(path):  # noqa: PTH113
        raise document.error(
            where, "there is no such file", value=path, remedy="paths are relative to the span file"
        )
    return path


def _hosts(document: Document, file: SpanFile, setting: Setting) -> dict[str, tuple[str, ...]]:
    found = {}
    for k, site in enumerate(file.sites):
        needed = site.stages * setting.pipelines
        if site.hosts and site.stages and len(site.hosts) not in (1, needed):
            raise document.error(
                ("sites", k, "hosts"), f"are {len(site.hosts)} for {counted(needed, 'device')}",
                remedy="give one address for all, or one for each: stage by stage of pipeline 0, then of pipeline 1, ...",
            )  # fmt: skip
        if site.hosts and site.stages:
            found[site.name] = site.hosts
    return found


def _cut(document: Document, file: SpanFile, part: TrainPart, schedule: Schedule, setting: Setting) -> None:
    """As many parts as stages, or as parts of stages of a schedule with chunks."""
    stages = len(setting.stages)
    chunked = schedule.name == "interleaved"
    if chunked and stages * file.chunks != stages and stages == 1:
        raise document.error(
            ("train", "schedule"), "needs two stages at least", value=schedule.name, remedy="use another"
        )
    if part.cut is None:
        return
    parts = stages * (file.chunks if chunked else 1)
    if len(part.cut) != parts:
        what = "part" if chunked else "stage"
        raise document.error(
            ("train", "cut"), f"gives {len(part.cut)} of {counted(parts, what)}", value=list(part.cut),
            remedy=f"one number for each {what}, or leave it out for an even cut",
        )  # fmt: skip


def _semantics(document: Document, part: TrainPart, setting: Setting, shares: PipelineShares | None) -> None:
    if part.changes_semantics is None or part.changes_semantics.outer is None:
        return
    where = ("train", "changes_semantics", "outer")
    if setting.pipelines == 1:
        raise document.error(where, "needs several pipelines", remedy="set pipelines, or leave it out")
    if shares is not None and len(set(shares.microbatches)) > 1:
        raise document.error(
            where, "counts all pipelines equally, and they have other numbers of microbatches",
            remedy="give all pipelines as many microbatches, or leave it out",
        )  # fmt: skip


def _cells(document: Document, setting: Setting, shares: PipelineShares) -> None:
    """Real nodes of a cell are those of pipelines one after the other."""
    each = list(zip(shares.microbatches, shares.speeds, strict=True))
    for pipeline, one in enumerate(each):
        first = pipeline // setting.cell * setting.cell
        if one != each[first]:
            raise document.error(
                ("cell",), f"pipelines {first} and {pipeline} are of one cell and differ", value=setting.cell,
                remedy="put equal pipelines one after the other",
            )  # fmt: skip
