"""Why a job failed, as a user sees it in each command: one store, several jobs that break in different ways."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import ask, unidle
from unidle.report.collect import collect
from unidle.store.open import open_store
from unidle.view.snapshot import load_view

TEXT = "rank 1: ValueError: shapes (3,4) and (5,) not aligned (crash.py:8)"
# rank 0 sees that its peer is gone before its peer's process has ended
CRASH = """import os, sys, time
if os.environ["RANK"] == "0":
    raise ConnectionResetError("Connection reset by peer")
if os.environ["RANK"] == "2":
    time.sleep(60)
time.sleep(0.5)
def multiply():
    raise ValueError("shapes (3,4) and (5,) not aligned")
multiply()
"""
RETRY = {"max": 5, "backoff_s": 0}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "crash": (CRASH, {"ranks": 3, "restart": RETRY}),
    "imports": ("import no_such_module\n", {"restart": RETRY}),
    "works": ("print('fine')\n", {}),
}

HOW: dict[str, tuple[str, ...]] = {"crash": (), "imports": ("--json",), "works": ()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("failure")


def write(place: Path, name: str) -> Path:
    code, fields = JOBS[name]
    (place / f"{name}.py").write_text(code)
    path = place / f"{name}.yaml"
    path.write_text(json.dumps({"name": name, "command": ["python3", f"{name}.py"], **fields}))
    return path


@pytest.fixture(scope="module")
def ran(place: Path) -> dict[str, subprocess.CompletedProcess[str]]:
    """What `unidle run` printed of each job; every output file is gone afterwards."""
    store = place / "s.db"
    done = {name: unidle("run", write(place, name), "--store", store, *more) for name, more in HOW.items()}
    for log in (place / "s.db.d").rglob("log"):
        log.unlink()
    return done


@pytest.fixture(scope="module")
def store(place: Path, ran: dict[str, subprocess.CompletedProcess[str]]) -> Path:
    return place / "s.db"


def test_run_ends_with_the_reason_its_last_lines_and_the_next_command(ran, store: Path) -> None:
    done = ran["crash"]
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    first = lines.index(TEXT)
    assert "  | ValueError: shapes (3,4) and (5,) not aligned" in lines[first:]
    assert "  ranks 0 and 2 failed because of it" in lines[first:]
    assert lines[-1].startswith("  next: unidle logs crash-") and lines[-1].endswith(
        f" --rank 1 --store {store}"
    )
    assert f"{TEXT}; same error twice, at no step: not retried" in done.stdout
    assert unidle(*lines[-1].split()[2:]).returncode == 0
    assert "next:" not in ran["works"].stderr and "rank 0:" not in ran["works"].stderr


def test_run_has_it_in_its_json(ran) -> None:
    failure = json.loads(ran["imports"].stdout)["failure"]
    assert {name: failure[name] for name in ("rank", "kind", "what", "where", "code", "signal", "because_of")} == {
        "rank": 0, "kind": "code", "what": "ModuleNotFoundError: No module named 'no_such_module'", "where": "imports.py:1", "code": 1,
        "signal": None, "because_of": [],
    }  # fmt: skip
    assert failure["lines"][-1] == failure["what"] and failure["next"].startswith("unidle logs imports-")


def test_the_other_commands_have_it_without_the_output_files(store: Path) -> None:
    story, shown = ask("explain", "crash", "--store", store), ask("show", "crash", "--store", store)
    listed = {line["name"]: line for line in ask("list", "--store", store)}
    assert story["failure"] == shown["failure"] == listed["crash"]["failure"]
    assert story["failure"]["text"] == TEXT and len(story["failure"]["lines"]) >= 5
    assert [run["failure"]["text"] for run in shown["runs"]] == [TEXT, TEXT]
    assert listed["works"]["failure"] is None
    assert TEXT in unidle("list", "--store", store).stdout
    for command in ("explain", "show"):
        text = unidle(command, "crash", "--store", store).stdout
        assert f"\n{TEXT}\n" in text and "\n  next: unidle logs " in text


def test_what_no_restart_mends_is_tried_once(store: Path) -> None:
    once = {line["name"]: line for line in ask("list", "--store", store)}["imports"]
    assert once["attempts"] == 1
    assert once["reason"] == (
        "rank 0: ModuleNotFoundError: No module named 'no_such_module' (imports.py:1); a failed import does not fix itself: not retried"
    )


def test_the_split_is_in_the_ledger_and_in_the_accounts_of_failures(store: Path) -> None:
    groups = ask("ledger", "--by", "failure,job", "--store", store)["groups"]
    kinds = {(group["failure"], (group["job"] or "").rpartition("-")[0]) for group in groups}
    assert {("code", "crash"), ("code", "imports"), (None, "works"), (None, "")} <= kinds
    assert ask("ledger", "--store", store)["capacity_ns"] == sum(group["ns"] for group in groups)
    causes = {row["cause"]: row["incidents"] for row in ask("guard", "failures", "--store", store)["causes"]}
    assert causes == {"code": 3}


def test_the_log_has_it_for_tools_of_others(store: Path) -> None:
    text = unidle("store", "export", "-", "--store", store).stdout
    assert '"where":"crash.py:8"' in text.replace(" ", "") and '"kind":"code"' in text.replace(" ", "")


def test_the_report_has_it_for_its_page(store: Path) -> None:
    opened = open_store(str(store), create=False, read_only=True)
    data = collect(opened, load_view(opened), str(store))
    opened.close()
    problems = {story.job.split("-")[0]: story.problem for story in data.stories}
    assert problems.get("works") is None and problems["crash"] is not None
    assert problems["crash"].headline == TEXT
    assert problems["crash"].lines[-1] == "ValueError: shapes (3,4) and (5,) not aligned"
