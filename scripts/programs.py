"""Runs the programs of tests/programs as a new user would, and writes what they show into docs/how-to/programs.md.

.venv/bin/python scripts/programs.py
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "how-to" / "programs.md"
UNIDLE = Path(sys.executable).with_name("unidle")
FIRST_LINES, LAST_LINES = 4, 24
WIDTH = 140
HEAD = """# Output of common programs

Find a program like yours, and compare its output: examples of PyTorch, trainers, shell scripts. Each was run as shown, in one store, without a
terminal. Lines in the middle are left out (`[...]`), and times vary. The programs are in `tests/programs`; `scripts/programs.py` runs them and writes
this page.
"""
PARTS: tuple[tuple[str, str, tuple[tuple[str, str], ...]], ...] = (
    ("Programs that succeed", "", (
        ("mnist.py", "pytorch/examples, mnist. Its lines count samples, so the steps of the summary are samples."),
        ("words.py", "pytorch/examples, word_language_model."),
        ("nanogpt.py", "nanoGPT."),
        ("mingpt.py", "minGPT, with `logging` in front of each line."),
        ("trainer.py", "Hugging Face's Trainer: a bar on standard error, dicts on standard output."),
        ("keras_like.py", "Keras: a bar for each epoch."),
        ("fairseq_like.py", "fairseq with JSON in its log."),
        ("timm_like.py", "timm. Lines of the validation are not counted."),
        ("jsonl.py", "JSON lines, as in many own scripts."),
        ("--ranks 2 ddp.py", "The DDP tutorial of PyTorch, over gloo."),
        ("one_or_many.py", "A script for one process or several. It gets no `WORLD_SIZE`, so it runs as one process."),
        ("--ranks 2 gang.sh", "A gang of shell scripts."),
        ("download.py", "A download. Its progress does not count as steps, and the time is `unmeasured`."),
        ("server.py", "An access log. Its growing numbers do not count as steps."),
    )),
    ("Programs that fail", "All are run with `--max-restarts 3`.", (
        ("--ranks 2 shapes.py", "An exception in one rank of a gang."),
        ("imports.py", "A module that is not installed."),
        ("syntax.py", "A syntax error."),
        ("--memory 200MB greedy.py", "More memory than the job's limit."),
        ("loader.py", "An exception in a worker of a DataLoader."),
        ("typo.sh", "A command that does not exist, in a shell script."),
        ("usage.py", "A wrong option of the script itself."),
        ("crash.py", "A crash in native code, with faulthandler."),
    )),
)  # fmt: skip


def shown(text: str, here: Path) -> str:
    """The output as on any machine, without its middle."""
    text = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text.replace(str(here), "/home/you/jobs"))
    text = text.replace(str(Path(sys.executable).parents[1]), "/home/you/venv")
    text = re.sub(r"/\S*?/lib/python3", "/usr/lib/python3", text)
    lines = [line.rpartition("\r")[2].rstrip() for line in text.splitlines()]
    lines = [line if len(line) <= WIDTH else line[: WIDTH - 5] + "[...]" for line in lines]
    if len(lines) > FIRST_LINES + LAST_LINES + 2:
        lines = [*lines[:FIRST_LINES], "[...]", *lines[-LAST_LINES:]]
    return "\n".join(lines)


def ran(words: list[str], here: Path) -> str:
    environment = {**os.environ, "UNIDLE_STORE": str(here / "store.db"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [UNIDLE, "run", *words], cwd=here, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace", timeout=120,
    )  # fmt: skip
    return shown(done.stdout, here)


def main() -> None:
    pages = [HEAD]
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch) / "work"
        shutil.copytree(ROOT / "tests" / "programs", here)
        for title, note, programs in PARTS:
            pages.append(f"## {title}\n" + (f"\n{note}\n" if note else ""))
            for line, what in programs:
                words = ["--max-restarts", "3"] * bool(note) + line.split()
                name = words[-1]
                print(name, file=sys.stderr)
                pages.append(f"### {name}\n\n{what}\n\n    unidle run {' '.join(words)}\n")
                pages.append(f"```text\n{ran(words, here)}\n```\n")
    PAGE.write_text("\n".join(pages), encoding="utf-8")


if __name__ == "__main__":
    main()
