"""Bad input: one line that names the field, the exit code, and a store that is not touched."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from e2e.commands import unidle

BAD_JOBS = {
    "empty": (b"", "the file is empty"),
    "binary": (bytes(range(128, 256)) * 20, "UTF-8"),
    "deep": (b"command: " + b"[" * 5000 + b"]" * 5000, "nested too deeply"),
    "twice": (b"command: [a]\nranks: 2\nranks: 3\n", "ranks: the field is given twice, first on line 2"),
    "type": (b"command: [a]\nranks: lots\n", "ranks: must be a whole number"),
    "nan": (b"command: [a]\ntimeout_s: .nan\n", "timeout_s: must be a finite number"),
    "negative": (b"command: [a]\nranks: -1\n", "ranks: must be a whole number from 1"),
    "outside": (b"command: [a]\ncheckpoint: {path: ../x}\n", "checkpoint.path: the path leads outside"),
    "union": (b"command: [a]\nranks: [1]\n", "or a mapping of fields, not a list; give a number"),
    "unknown": (b"command: [a]\nrank: 3\n", "rank: unknown field; the closest known field is ranks"),
    "string": (b"command: python train.py\n", 'write it as a list: ["python", "train.py"]'),
}
NODE = "{id: n0, devices: [{kind: cpu, count: 2}]}"
BAD_FLEETS = {
    "cycle": (
        (
            "tiers: [{id: a, kind: rack, parent: b}, {id: b, kind: rack, parent: a}]\n"
            "nodes: [{id: n0, parent: a, devices: [{kind: cpu, count: 2}]}]\n"
        ),
        "the tiers form a cycle",
    ),
    "duplicate": (f"nodes: [{NODE}, {NODE}]\n", "is used twice"),
}


def one_line(text: str) -> str:
    (line,) = text.splitlines()
    assert line.startswith("unidle: ")
    return line


def in_turn(calls: Iterable[tuple[object, ...]]) -> list[tuple[int, str, str]]:
    """Run commands, two at a time: (exit code, standard output, standard error)."""
    with ThreadPoolExecutor(2) as pool:
        done = list(pool.map(lambda words: unidle(*words), calls))
    return [(d.returncode, d.stdout, d.stderr) for d in done]


def test_bad_job_file_costs_one_line_and_nothing_else(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    calls: list[tuple[object, ...]] = []
    for name, (content, _) in BAD_JOBS.items():
        (tmp_path / f"{name}.yaml").write_bytes(content)
        calls.append(("run" if len(calls) % 2 else "submit", tmp_path / f"{name}.yaml", "--store", store))
    for (name, (_, says)), (code, out, err) in zip(BAD_JOBS.items(), in_turn(calls), strict=True):
        assert code == 2, name
        assert says in one_line(err)
        assert f"{name}.yaml" in err
        assert out == ""
    assert not store.exists()


def test_job_file_of_100_mb_is_not_even_read(tmp_path: Path) -> None:
    huge = tmp_path / "huge.yaml"
    with huge.open("wb") as file:
        file.write(b"command: [a]\n")
        file.truncate(100 << 20)
    done = unidle("run", huge, "--store", tmp_path / "s.db")
    assert done.returncode == 2
    assert "too large" in one_line(done.stderr)
    assert not (tmp_path / "s.db").exists()


def test_bad_fleet_file_names_what_is_wrong(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    calls: list[tuple[object, ...]] = []
    for name, (text, _) in BAD_FLEETS.items():
        path = tmp_path / f"{name}.yaml"
        path.write_text(text)
        calls += [
            ("fleet", "--fleet", path),
            ("up", "--fleet", path, "--store", store),
            ("run", "--fleet", path, "--store", store, "--", "true"),
        ]
    found = in_turn(calls)
    for k, (_, says) in enumerate(BAD_FLEETS.values()):
        for code, _, err in found[3 * k : 3 * k + 3]:
            assert code == 2
            assert says in one_line(err)
    assert not store.exists()


def test_words_that_no_command_knows(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    done = unidle("submit", "--store", store, "--json", "--", "true")
    job = json.loads(done.stdout)["job"]
    cases = {
        ("run", "--store", store): "JOB: give a job file or a command",
        (
            "submit",
            "--store",
            store,
        ): "; unidle submit JOB.yaml, or unidle submit --ranks 4 python train.py",
        ("run", "--store", store, "--"): "command: must have at least 1 item",
        ("run", "--store", store, "--ranks", "0", "--", "true"): "ranks: must be a whole number",
        ("run", "--store", store, tmp_path / "none.yaml"): "there is no such file",
        (
            "run",
            "--store",
            store,
            tmp_path / "a.yaml",
            "--",
            "true",
        ): "JOB: give either a job file or a command",
        ("run", "--store", store, tmp_path / "none.py"): "PROGRAM: there is no such file",
        (
            "run",
            "--store",
            store,
            "--logs",
            "0,4",
            "--ranks",
            4,
            "--",
            "true",
        ): "--logs: the job has no such rank (got 4)",
        ("logs", "--store", store, job, "--grep", "("): "--grep: is not a regular expression",
        ("run", "--store", store, "--progress", "loud", "--", "true"): "--progress: is not a kind",
        (
            "list",
            "--store",
            store,
            "--",
            "true",
        ): "only `unidle run`, `submit`, `exec`, `tune run` and `tune profile` accept a command",
        ("list", "--store", store, "--state", "lost"): "--state: is not a state of a job",
        ("show", "--store", store, "nobody"): "JOB: no such job in this store",
        ("cancel", "--store", store, "nobody"): "JOB: no such job in this store",
        ("logs", "--store", store, job, "--rank", 1): "--rank: the job has no such rank",
        ("ledger", "--store", store, "--by", "colour"): "known are leaf",
        ("ledger", "--store", store, "--since", "soon"): "--since: is not a time",
        ("ledger", "--store", store, "--format", "png"): "--format: is not a format",
        ("ledger", "--store", store, "-o", tmp_path / "no/ledger"): "--out: cannot be written",
        ("store", "import", tmp_path / "none.jsonl", "--store", tmp_path / "new.db"): "cannot be read",
        ("schema", "store"): "job, fleet, clusters",
        ("list", "--store", "mysql://here/db"): "is not an address of a store",
    }
    for (code, out, err), (words, says) in zip(in_turn(cases), cases.items(), strict=True):
        assert (code, out) == (2, ""), (words, code, err)
        assert says in one_line(err)
    assert not (tmp_path / "new.db").exists()


def test_a_store_that_no_controller_ever_served_says_nothing_of_devices(tmp_path: Path) -> None:
    store, fleet = tmp_path / "s.db", tmp_path / "fleet.yaml"
    fleet.write_text("nodes: [{id: n, devices: {count: 1, kind: cpu}}]")
    job = json.loads(unidle("submit", "--store", store, "--json", "--", "true").stdout)["job"]
    nobody = f"--store: the store has no fleet yet: no controller has run on it (got '{store}'); start one with `unidle up --store {store}`"
    cases = {
        ("place", "--store", store, "--job", job): nobody,
        ("queue", "--store", store): nobody,
        ("fleet", "--store", store): nobody,
        ("fleet", "snapshot", "--store", store): nobody,
        ("fleet", "--store", store, "summary"): nobody,
        ("replay", "store", "--store", store, "--policy", "unidle"): "can be replayed (1 job left out: run time unknown",
        ("place", "--store", store, "--fleet", fleet, "--job", job): "--store, --fleet: cannot be used together; leave one out",
        ("fleet", "--store", store, "--cpu-devices", 2): "--store, --cpu-devices: cannot be used together; leave one out",
    }  # fmt: skip
    for (code, out, err), (words, says) in zip(in_turn(cases), cases.items(), strict=True):
        assert (code, out) == (2, ""), (words, code, err)
        assert says in one_line(err)


def test_unknown_option_and_command_are_bad_input() -> None:
    words = [("run", "--colour", "red"), ("rum",), ("up", "--cpu-devices", "0")]
    for said, (code, out, err) in zip(words, in_turn(words), strict=True):
        assert (code, out) == (2, "")
        line = one_line(err)
        assert (said[1] if len(said) > 1 else said[0]) in line


def test_job_larger_than_the_machine_is_refused_before_it_is_submitted(tmp_path: Path) -> None:
    done = unidle("run", "--ranks", 9, "--cpu-devices", 8, "--store", tmp_path / "s.db", "--", "true")
    assert done.returncode == 3
    assert "needs 9 devices, and the fleet has 8: it can never start here" in one_line(done.stderr)
    assert not (tmp_path / "s.db").exists()


@pytest.mark.parametrize("kind", ["missing", "not a store", "read-only place", "directory"])
def test_unusable_store_is_exit_code_4(kind: str, tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    command: tuple[object, ...] = ("list",)
    if kind == "not a store":
        store.write_bytes(b"not SQLite at all" * 100)
    elif kind == "directory":
        store.mkdir()
    elif kind == "read-only place":
        store = Path("/proc/unidle/s.db")
        command = ("submit", "--", "true")
    done = unidle(command[0], "--store", store, *command[1:])
    assert done.returncode == 4
    assert str(store) in one_line(done.stderr)


def test_an_export_into_the_store_itself_is_refused_and_the_store_stays(tmp_path: Path) -> None:
    store, link = tmp_path / "s.db", tmp_path / "link"
    (tmp_path / "job.yaml").write_text("command: [a]\n")
    assert unidle("submit", tmp_path / "job.yaml", "--store", store).returncode == 0
    link.symlink_to(store)
    for file, *more in [(store,), (link,), (f"{store}-wal",), (store, "--salvage")]:
        done = unidle("store", "export", "--store", store, file, *more)
        assert done.returncode == 2
        assert (
            f"FILE: {file}: is a file of the store itself" in one_line(done.stderr) or "FILE" in done.stderr
        )
    assert unidle("store", "check", "--store", store).returncode == 0
