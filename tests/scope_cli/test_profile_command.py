"""``unidle profile`` as users call it: on saved profiles everywhere, on real processes where the kernel allows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import UNIDLE, unidle
from scope.worlds import TORCH, World, at
from unidle.scope.rules import CATEGORIES
from waiting import wait_until

LOADER = (
    at("train", 4),
    f"_MultiProcessingDataLoaderIter._next_data {TORCH}/utils/data/dataloader.py",
    "wait poll",
)
SPIN = "print('ready', flush=True)\ndef churn():\n    while True:\n        sum(range(1000))\nchurn()\n"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    w = (
        World()
        .process(1)
        .sees(1, "on", 3000, "_start [python3.11]", at("train", 6))
        .sees(1, "off", 7000, *LOADER)
    )
    path = tmp_path / "saved.json"
    path.write_text(json.dumps(w.profile().to_json()))
    return path


@contextmanager
def running(script: Path, text: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    script.write_text(text)
    with subprocess.Popen(
        [sys.executable, str(script), *more], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def looked(*words: object, **more: Any) -> dict[str, Any]:
    done = unidle("profile", *words, "--json", **more)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert list(told["budget"]) == list(CATEGORIES)
    assert round(sum(told["budget"].values()), 6) == 100
    return told


def test_a_saved_profile_is_shown_again(saved: Path) -> None:
    done = unidle("profile", "--from", saved)
    assert done.returncode == 0
    assert "70 % of the time it waits for the DataLoader's workers" in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "\x1b" not in done.stdout
    assert looked("--from", saved)["budget"]["data"] == 70.0


def test_json_format_is_the_answer_and_the_profile_in_one(saved: Path, tmp_path: Path) -> None:
    out = tmp_path / "again.json"
    assert unidle("profile", "--from", saved, "--format", "json", "--out", out).returncode == 0
    told = json.loads(out.read_text())
    assert told["budget"]["data"] == 70.0
    assert looked("--from", out)["budget"] == told["budget"]
    piped = unidle("profile", "--from", saved, "--format", "json")
    assert json.loads(piped.stdout) == told


@pytest.mark.parametrize("form", ["html", "speedscope", "pprof", "folded", "perfetto", "chrome", "otlp"])
def test_each_format_is_written_and_its_suffix_names_it(saved: Path, tmp_path: Path, form: str) -> None:
    from unidle.scope.export import FORMATS

    named = tmp_path / f"by-name-{form}"
    suffixed = tmp_path / f"x{FORMATS[form].suffix}"
    assert unidle("profile", "--from", saved, "--format", form, "-o", named).returncode == 0
    assert unidle("profile", "--from", saved, "-o", suffixed).returncode == 0
    assert len(named.read_bytes()) > 50
    assert suffixed.exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["999999999"], "PID: no such process"),
        (["0"], "PID: no such process"),
        (["1", "--seconds", "0"], "--seconds"),
        (["1", "--hz", "0"], "--hz"),
        (["1", "--format", "svg"], "--format"),
        (["1", "--rank", "0"], "--rank: is for jobs"),
        (["1", "--rules", "/nonexistent.yaml"], "no such file"),
        (["1", "--from", "x.json"], "--from, PID|JOB: cannot be used together"),
        (["1", "--since", "1h"], "PID|JOB: is a process"),
        (["1", "--tier", "T3"], "--tier: reads files"),
        (["other", "--since", "1h", "--top"], "--since, --top: cannot be used together"),
        (["other", "--since", "1h", "--import", "x.json"], "--since, --import: cannot be used together"),
        (["1", "--json", "--format", "folded"], "both write to standard output"),
        (["--from", "/nonexistent.json"], "no such file"),
        (["1", "--out", "/nonexistent/x.html"], "--out: cannot be written"),
        (["1", "--out", "/tmp"], "--out"),
        (["1", "--out", "x.unknown"], "its suffix names no format"),
        (["no-such-job"], "no-such-job"),
    ],
)
def test_bad_input_gets_one_line_and_exit_code_2(words: list[str], told: str, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    made = unidle("submit", "--store", store, "--name", "other", "--", "true")
    assert made.returncode == 0, made.stderr
    env = {**os.environ, "UNIDLE_STORE": str(store)}
    done = unidle("profile", *words, env=env)
    assert (done.returncode, done.stdout if "--json" not in words else "") == (2, ""), done.stderr
    assert told in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words", [["--hz", "0"], ["--wrong"], ["1", "--top"], ["--from", "/nonexistent.json"]]
)
def test_with_json_an_error_is_json_too(words: list[str]) -> None:
    done = unidle("profile", *words, "--json")
    told = json.loads(done.stdout)["error"]
    assert done.returncode == told["exit_code"] == 2
    assert told["field"] in done.stderr
    assert set(told) == {"field", "problem", "value", "remedy", "exit_code"}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"stacks": 3}', "{", '{"form": 99, "stacks": []}', "[" * 5000]
)
def test_a_file_that_is_no_profile_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    done = unidle("profile", "--from", path)
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_rules_of_ones_own_go_first(saved: Path, tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(
        'rules:\n- {name: mine, category: idle, says: "plays", frame: "train <user>", do: "work"}\n'
    )
    assert looked("--from", saved, "--rules", rules)["budget"]["idle"] == 100.0
    done = unidle("profile", "--from", saved, "--rules", rules)
    assert "100 % of the time it plays" in done.stdout
    assert "try: work" in done.stdout


def test_a_profile_that_cannot_be_written_is_saved_elsewhere(saved: Path, tmp_path: Path) -> None:
    env = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data")}
    done = unidle("profile", "--from", saved, "--format", "json", "--out", "/dev/full", env=env)
    assert done.returncode == 2
    assert "No space left" in done.stderr
    assert "70 %" in done.stdout  # what was found is shown all the same
    kept = list((tmp_path / "data" / "unidle" / "profiles").iterdir())
    assert str(kept[0]) in done.stderr
    assert looked("--from", kept[0])["budget"]["data"] == 70.0
    both = unidle("profile", "--from", saved, "--json", "--format", "html", "--out", "/dev/full", env=env)
    told = json.loads(both.stdout)
    assert (both.returncode, told["error"]["field"], told["budget"]["data"]) == (2, "--out", 70.0)


def test_a_job_that_waits_is_not_running(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    unidle("submit", "--store", store, "--name", "waits", "--", "true")
    done = unidle("profile", "waits", "--store", store)
    assert done.returncode == 3
    assert "the job does not run" in done.stderr


def test_a_process_that_has_ended_is_exit_code_5() -> None:
    with subprocess.Popen(["true"]) as ended:
        wait_until(lambda: b") Z" in Path(f"/proc/{ended.pid}/stat").read_bytes(), what="its end")
        done = unidle("profile", ended.pid)
    assert done.returncode == 5
    assert "has ended" in done.stderr


@needs.root
def test_a_process_of_another_user_is_exit_code_3_and_says_how(tmp_path: Path) -> None:
    with running(tmp_path / "spin.py", SPIN) as spin:
        # May read any file, wherever the checkout is; that is no right to look into processes.
        files = ["--inh-caps=-all,+dac_read_search", "--ambient-caps=+dac_read_search"]
        other = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", *files]
        done = subprocess.run([*other, *UNIDLE, "profile", str(spin.pid)], capture_output=True, text=True, cwd="/", env={**os.environ, "HOME": "/nonexistent"})  # fmt: skip
    if "No module named" in done.stderr or "Permission denied" in done.stderr:
        pytest.fail(f"the other user cannot run the command at all: {done.stderr}")
    assert done.returncode == 3
    assert f"sudo unidle profile {spin.pid}" in done.stderr


@needs.ebpf
def test_a_running_loop_in_python_is_found_with_its_line(tmp_path: Path) -> None:
    with running(tmp_path / "spin.py", SPIN) as spin:
        told = looked(spin.pid, "--seconds", 2)
    assert told["tier"] == "T0"
    assert told["budget"]["python"] + told["budget"]["cpu_contention"] > 90
    found = next(one for one in told["findings"] if one["category"] == "python")
    assert found["lines"][0]["function"] == "churn"
    assert told["ranks"][0]["pid"] == spin.pid
    assert told["steps"] == {
        "count": None,
        "p50_ms": None,
        "p99_ms": None,
        "of": None,
        "why_not": told["steps"]["why_not"],
    }


@needs.ebpf
def test_children_are_looked_at_unless_refused(tmp_path: Path) -> None:
    text = f"import subprocess, sys\np = subprocess.Popen([sys.executable, '-c', {SPIN!r}])\np.wait()\n"
    with running(tmp_path / "parent.py", text) as parent:
        both = looked(parent.pid, "--seconds", 1)
        alone = looked(parent.pid, "--seconds", 1, "--no-children")
    assert len({one["pid"] for one in both["threads"]}) == 2
    assert {one["pid"] for one in alone["threads"]} == {parent.pid}
    assert alone["budget"]["other"] > 90  # it waits for another program


@needs.ebpf
def test_ctrl_c_shows_what_was_seen_so_far(tmp_path: Path) -> None:
    with running(tmp_path / "spin.py", SPIN) as spin:
        command = [*UNIDLE, "profile", str(spin.pid), "--seconds", "600", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as look:
            wait_until(lambda: len(probes_of(look.pid)) > 3, 60, "its probes")
            look.send_signal(signal.SIGINT)
            out, errors = look.communicate(timeout=60)
    assert look.returncode == 0, errors
    assert json.loads(out)["tier"] == "T0"
    assert json.loads(out)["seconds"] < 590


@needs.ebpf
def test_a_process_that_ends_while_watched_ends_the_look(tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    text = f"import os\nprint('ready', flush=True)\nwhile not os.path.exists({str(stop)!r}):\n    sum(range(100))\n"
    with running(tmp_path / "short.py", text) as short:
        command = [*UNIDLE, "profile", str(short.pid), "--seconds", "600", "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as look:
            wait_until(lambda: len(probes_of(look.pid)) > 3, 60, "its probes")
            stop.touch()
            out, _ = look.communicate(timeout=60)
    told = json.loads(out)
    if look.returncode == 5:  # it ended before a sample of it was taken
        assert told["error"]["exit_code"] == 5
    else:
        assert (look.returncode, told["seconds"] < 590) == (0, True)


@needs.ebpf
@pytest.mark.slow
def test_a_job_is_looked_at_by_its_name_all_ranks_at_once(tmp_path: Path) -> None:
    script = tmp_path / "rank.py"
    script.write_text(SPIN)
    store = tmp_path / "s.db"
    command = [*UNIDLE, "run", "--store", str(store), "--name", "pair", "--ranks", "2", "--cpu-devices", "2", "--", sys.executable, str(script)]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as run:
        try:
            wait_until(lambda: len(list(tmp_path.glob("s.db.d/runs/pair*/1/rank*/log"))) == 2 and all(p.read_bytes() for p in tmp_path.glob("s.db.d/runs/pair*/1/rank*/log")), 60, "both ranks")  # fmt: skip
            told = looked("pair", "--store", store, "--seconds", 2)
            one = looked("pair", "--store", store, "--seconds", 1, "--rank", 1)
            wrong = unidle("profile", "pair", "--store", store, "--rank", 2)
        finally:
            run.send_signal(signal.SIGINT)
            run.wait(60)
    assert [rank["rank"] for rank in told["ranks"]] == [0, 1]
    assert all(rank["job"].startswith("pair") for rank in told["ranks"])
    assert [rank["rank"] for rank in one["ranks"]] == [1]
    assert wrong.returncode == 2


def probes_of(pid: int) -> list[str]:
    """The descriptors of BPF programs and links that a process holds."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").glob("*"):
        try:
            found.append(str(fd.readlink()))
        except OSError:
            continue
    return [name for name in found if "bpf" in name or "perf_event" in name]
