"""The train section: what fits is read, what does not is one error with field, value and remedy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from span.reading import load_span, load_wanted, run_from_mapping
from span_run import runs
from unidle.errors import BadInput
from unidle.span.files.train import RunRequest, load_run
from unidle.span.simulate.iteration import Simulation, simulate

EXAMPLE = Path(__file__).parents[2] / "examples" / "span" / "train.yaml"


def read(place: Path, train: dict[str, Any] | None = None, **fields: Any) -> RunRequest:
    (place / "model.py").write_text(runs.MODEL)
    own = {name: value for name, value in {**runs.TRAIN, **(train or {})}.items() if value is not None}
    return run_from_mapping(runs.span(**{"train": own, **fields}), str(place))


def simulated(found: RunRequest) -> Simulation:
    return simulate(found.setting, found.schedule)


def test_the_example_is_read_and_paths_start_at_the_file() -> None:
    found = load_run(EXAMPLE)
    assert found.training.build == f"{EXAMPLE.parent}/model.py:build"
    assert found.training.saving is not None
    assert found.training.saving.directory == f"{EXAMPLE.parent}/checkpoints"
    assert found.schedule.name == "unidle"
    assert not found.setting.wide


def test_other_commands_leave_the_section_aside(tmp_path: Path) -> None:
    path = runs.written(
        tmp_path,
        runs.span(
            stage_ns=None,
            activation_bytes=None,
            device_tflops=1,
            model={"layers": 4, "hidden": 8, "sequence": 4},
        ),
    )
    assert len(load_span(path).stages) == 2
    assert load_wanted(path).layers == 4


def test_a_file_without_the_section_is_told_what_it_needs(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"train: the section is missing.*build: model.py:build"):
        run_from_mapping(runs.span(train=None), str(tmp_path))


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"steps": 0}, r"train.steps: must be 1 or more|train.steps"),
        ({"steps": -3}, r"train.steps"),
        ({"data": "model.py"}, r"train.data: .*FILE.py:FUNCTION"),
        ({"data": "missing.py:batch"}, r"train.data: there is no such file .*missing.py.*relative to the span file"),
        ({"model": {"build": "model.py:build", "dtype": "float8"}}, r"train.model.dtype"),
        ({"cut": [3]}, r"train.cut: gives 1 of 2 stages .*one number for each stage"),
        ({"cut": [3, 0]}, r"train.cut"),
        ({"optimizer": {"name": "lion"}}, r"train.optimizer.name: .*sgd, adamw, or FILE.py:FUNCTION"),
        ({"schedule": "fast"}, r"train.schedule: there is no such schedule .*1f1b"),
        ({"schedule": "1f1b,gpipe"}, r"train.schedule: must be one"),
        ({"schedule": "model.py:build"}, r"train.schedule"),
        ({"checkpoint": {"directory": "c", "every": 0}}, r"train.checkpoint.every"),
        ({"tls": {"certificate": "c.pem", "key": "k.pem", "authority": "a.pem"}}, r"train.tls.certificate: there is no such file"),
        ({"changes_semantics": {"outer": {"every": 2}}}, r"train.changes_semantics.outer: needs several pipelines"),
        ({"changes_semantics": {"activations": "fp4"}}, r"train.changes_semantics.activations"),
        ({"microbatch": 0}, r"train.microbatch"),
        ({"sped": 1}, r"train.sped|sped"),
    ],
)  # fmt: skip
def test_bad_input_names_field_and_remedy(tmp_path: Path, train: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        simulated(read(tmp_path, train))


def test_hosts_are_one_for_all_or_one_for_each(tmp_path: Path) -> None:
    sites = [
        {"name": "a", "stages": 1, "hosts": ["10.0.0.1"]},
        {"name": "b", "stages": 1, "hosts": ["h1", "h2", "h3"]},
    ]
    with pytest.raises(BadInput, match=r"sites\[?.?1.*hosts: are 3 for 2 devices.*one address for all"):
        read(tmp_path, sites=sites, pipelines=2)
    found = read(tmp_path, sites=[sites[0], {**sites[1], "hosts": ["h1", "h2:30000"]}], pipelines=2)
    assert found.training.hosts == {"a": ("10.0.0.1",), "b": ("h1", "h2:30000")}


def test_a_schedule_of_ones_own_starts_at_the_file_too(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "def mine(setting):\n    return [[(op, m) for op in 'FBW' for m in range(setting.microbatches)] for _ in setting.stages]\n"
    )
    assert read(tmp_path, {"schedule": "mine.py:mine"}).schedule.name.endswith("mine.py:mine")
