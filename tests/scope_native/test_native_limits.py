"""Who may look, at what, and that nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from scope_native.programs import MIXED, running
from unidle.errors import BadInput, CannotRun
from unidle.scope.tiers import look, native
from waiting import wait_until

SRC = Path(native.__file__).parents[3]


@needs.ebpf
def test_no_probe_is_left_after_the_profiler_is_killed() -> None:
    import unidle_scope

    looker = (
        "import os, sys\nfrom unidle.scope.tiers import watch\n"
        "w = watch([os.getppid()])\nprint('ready', flush=True)\nw.run(100)\n"
    )
    with subprocess.Popen([sys.executable, "-c", looker], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        before = unidle_scope.loaded_programs().count("clocked")
        assert before >= 1
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: unidle_scope.loaded_programs().count("clocked") < before, what="probes to go")


@needs.ebpf
def test_what_cannot_be_watched_is_refused_by_its_number() -> None:
    with pytest.raises(BadInput, match="4194303 is not there"):
        look([4194303], 1)
    (kthreadd,) = [2]
    if Path("/proc/2/comm").read_text() == "kthreadd\n":
        with pytest.raises(BadInput, match="kernel's own"):
            look([kthreadd], 1)
    with pytest.raises(BadInput, match="names no process"):
        look([], 1)
    with pytest.raises(BadInput, match="hz"):
        look([os.getpid()], 1, hz=0)
    with pytest.raises(BadInput, match="seconds"):
        look([os.getpid()], 0)


@needs.ebpf
@needs.root
def test_a_user_without_the_right_is_told_which_one_is_missing() -> None:
    script = (
        "import os\nfrom unidle.errors import CannotRun\n"
        "import unidle_scope\nfrom unidle.scope.tiers import native\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "try:\n    native.attach([os.getpid()], hz=99, off_cpu=True, follow=True, tier='T0')\n"
        "except CannotRun as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "CAP_BPF" in said
    assert said.count("\n") == 1


def test_a_missing_native_part_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "unidle_scope", None)
    with pytest.raises(CannotRun, match="install the wheel unidle_scope of this version"):
        look([os.getpid()], 1)


def test_a_native_part_of_another_age_says_so(tmp_path: Path) -> None:
    (tmp_path / "unidle_scope.py").write_text("FORM = 0\n__version__ = '0.0.1'\n")
    script = (
        "import os\nfrom unidle.errors import CannotRun\nfrom unidle.scope.tiers import look\n"
        "try:\n    look([os.getpid()], 1)\nexcept CannotRun as error:\n    print(error)\n"
    )
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{SRC}"}
    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=env
    ).stdout
    assert "form 0" in said
    assert "form 2" in said


@needs.ebpf
def test_what_the_look_costs_is_measured_and_no_sample_is_lost() -> None:
    with running(MIXED) as process:
        profile = look([process.pid], 1.0)
    quality = profile.quality
    assert quality.drops == 0
    assert quality.bpf_cpu_pct is not None
    assert 0 < quality.bpf_cpu_pct < 100
    assert quality.agent_cpu_pct is not None
    assert 0 < quality.agent_cpu_pct < 100
    assert quality.attach_cpu_s is not None
    assert quality.attach_cpu_s > 0


@needs.ebpf
def test_a_profile_goes_through_json_unchanged() -> None:
    with running(MIXED) as process:
        profile = look([process.pid], 0.3)
    assert type(profile).from_json(profile.to_json()) == profile


@needs.ebpf
def test_progress_is_told_while_looking() -> None:
    told: list[float] = []
    with running(MIXED) as process:
        look([process.pid], 0.6, while_looking=told.append)
    assert len(told) >= 2
    assert told == sorted(told)
