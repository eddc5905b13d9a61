"""`make test-gpu`: without a GPU, on a machine that is played, and rehearsed on the CPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import needs
from nvml.playing import Played, build, machine
from waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
COMMAND = ROOT / "scripts" / "test-gpu.sh"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def h100(library: Path, tmp_path: Path) -> Played:
    return machine("h100x8", library, tmp_path)


def ran(*arguments: str | Path, on: Played | None = None, **more: str) -> subprocess.CompletedProcess[str]:
    env = (on.environ if on else os.environ) | {"PYTHON": sys.executable} | more
    return subprocess.run(
        [COMMAND, *arguments], env=env, capture_output=True, text=True, timeout=560, stdin=subprocess.DEVNULL
    )


def rows(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.skipif(needs.gpus() > 0, reason="GPU: only where there is none")
def test_without_a_gpu_it_is_one_line_and_its_own_exit_code() -> None:
    done = ran()
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("test-gpu: no GPU: no NVIDIA driver (libnvidia-ml.so.1")
    assert done.stderr.count("\n") == 1


@pytest.mark.slow  # PyTorch is imported to ask for CUDA
@pytest.mark.skipif(needs.gpus() > 0, reason="GPU: only where there is none")
def test_rows_of_nvml_run_on_a_played_machine_and_those_of_cuda_are_counted_as_missing(h100: Played) -> None:
    done = ran("--json", "--only", "discovery,watch,mig,check,visible,share by MPS", on=h100)
    assert done.returncode == 0, done.stdout + done.stderr
    told = rows(done)
    state = {(row["row"], row["what"]): row["state"] for row in told}
    assert {key[0] for key, value in state.items() if value == "ran"} == {
        "discovery", "watch", "mig", "check", "left behind",
    }  # fmt: skip
    assert {key[0] for key, value in state.items() if value == "missing"} == {"visible", "share by MPS"}
    found = next(row for row in told if row["what"] == "GPUs found")
    assert (found["ours"], found["unit"], found["holds"]) == (8, "GPUs", True), "a figure has bench's form"
    assert "0 failed, 2 missing: PyTorch cannot use a GPU" in done.stderr


def test_what_is_not_as_it_must_be_fails_and_a_row_that_hangs_ends_in_its_time(h100: Played) -> None:
    h100.write("nvmlDeviceGetUUID 3 =", "nvmlDeviceGetGpuInstanceProfileInfo * * ! hang")
    done = ran("--only", "discovery,mig", "--limit-s", "3", on=h100)
    assert done.returncode == 1
    assert "no UUID, model or memory is known of local/3" in done.stdout
    assert "not done within 3 s" in done.stdout
    assert "2 failed, 0 missing" in done.stderr


def test_a_driver_that_hangs_altogether_ends_the_command_in_one_line(h100: Played) -> None:
    h100.write("nvmlDeviceGetCount ! hang")
    done = ran("--limit-s", "1", on=h100)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "test-gpu: the driver did not answer within 1 s: nothing was run\n"


def test_a_setting_that_was_changed_meanwhile_is_named(h100: Played) -> None:
    with subprocess.Popen(
        [COMMAND, "--only", "watch"],
        env=h100.environ | {"PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: is_at_row("watch", h100), 60, "the row, which looks for some seconds")
        h100.write("nvmlDeviceGetPersistenceMode 2 = 0")
        assert process.stdout is not None
        told = process.stdout.read()
    assert process.returncode == 1, told
    assert "GPU 2: persistence was 1, is 0" in told


def is_at_row(row: str, on: Played) -> bool:
    """Whether the process of that row has begun."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line, env = (entry / "cmdline").read_bytes(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"--row\0{row}\0".encode() in line and str(on.file).encode() in env:
            return True
    return False


def test_what_was_recorded_plays_as_the_machine_it_was_recorded_on(library: Path, tmp_path: Path) -> None:
    faulty = machine("h100-faults", library, tmp_path)
    first, again = tmp_path / "first.nvml", tmp_path / "again.nvml"
    assert ran("--record", first, on=faulty).returncode == 0
    assert ran("--record", again, on=Played(library, first)).returncode == 0
    assert first.read_text() == again.read_text()
    names = ("devices", "clocks", "heat", "ecc", "remap", "pcie", "nvlink")
    assert Played(library, first).checks(*names, code=1) == faulty.checks(*names, code=1)


def test_the_table_goes_into_the_page_and_leaves_its_other_sections(h100: Played, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Benchmarks\n\n## check\n\nfigures\n\n## test-gpu\n\nnone yet\n\n## zoo\n\nmore\n")
    for _ in range(2):
        assert ran("--only", "discovery", "--page", page, on=h100).returncode == 0
        text = page.read_text()
        assert text.startswith("# Benchmarks\n\n## check\n\nfigures\n\n## test-gpu\n")
        assert text.endswith("\n\n## zoo\n\nmore\n") and "none yet" not in text
        assert "NVIDIA H100 80GB HBM3, 80 GiB" in text and "| GPUs found | ran | 8 | GPUs |" in text


def test_wheels_are_taken_for_the_run_and_bad_input_is_one_line(h100: Played, tmp_path: Path) -> None:
    assert "no row nothing" in ran("--only", "nothing", on=h100).stderr
    empty = ran(on=h100, WHEELS=str(tmp_path))
    assert (empty.returncode, empty.stderr) == (2, f"test-gpu: WHEELS={tmp_path} holds no wheel\n")
    other = ran(on=h100, PYTHON="/bin/false")
    assert (other.returncode, other.stderr) == (2, "test-gpu: PYTHON=/bin/false is no Python 3.11 or newer\n")
    with zipfile.ZipFile(tmp_path / "unidle_wheel-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("sitecustomize.py", "import sys\nsys.stderr.write('from the wheel\\n')\n")
        wheel.writestr(
            "unidle_wheel-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: unidle_wheel\nVersion: 1\n"
        )
        wheel.writestr(
            "unidle_wheel-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr("unidle_wheel-1.dist-info/RECORD", "")
    assert "from the wheel" in ran("--record", tmp_path / "r.nvml", on=h100, WHEELS=str(tmp_path)).stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ("nccl", "kernels", "roofline"),
        pytest.param(
            ("span run",), marks=pytest.mark.nightly
        ),  # in CI: such a run without the row (span_run)
    ],
)
def test_rows_of_cuda_can_be_rehearsed_on_the_cpu(names: tuple[str, ...]) -> None:
    done = ran("--rehearse", "--json", "--only", ",".join(names))
    assert done.returncode == 0, done.stdout + done.stderr
    assert {row["row"] for row in rows(done) if row["state"] == "ran"} == set(names)
    assert "no row says anything of a GPU" in done.stderr
