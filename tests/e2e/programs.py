"""Programs as other people write them (their shapes are re-created in tests/programs), and what a new user must see of each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

PROGRAMS = Path(__file__).resolve().parents[1] / "programs"


@dataclass(frozen=True, slots=True)
class Program:
    """One program and what a run of it shows.

    ``options`` of ``unidle run``; ``marks``, ``last``: lines that are read as steps, and the last step; ``shown``: in the
    text of the run; ``kind``, ``where``: of its failure; ``attempts``: with three restarts allowed.
    """

    name: str
    options: tuple[str, ...] = ()
    marks: int = 0
    last: int | None = None
    shown: str = ""
    kind: str = ""
    where: str = ""
    attempts: int = 1


GOOD = (
    Program("mnist.py", (), 60, 7552, "Train Epoch: 2"),
    Program("words.py", (), 28, 5783, "end of epoch   2"),
    Program("nanogpt.py", (), 40, 39, "iter 39: loss"),
    Program("mingpt.py", (), 20, 1900, "iter 1900: train loss"),
    Program("trainer.py", (), 30, 30, "train_runtime"),
    Program("keras_like.py", (), 36, 36, "Epoch 3/3"),
    Program("fairseq_like.py", (), 40, 400, "train_inner"),
    Program("timm_like.py", (), 52, 2501, "Acc@1"),
    Program("jsonl.py", (), 25, 24, '"step": 24'),
    Program("ddp.py", ("--ranks", "2"), 5, 4, "[GPU0] Epoch 4"),
    Program("one_or_many.py", shown="Use one process for training"),
    Program("gang.sh", ("--ranks", "2"), 8, 8, "worker 0 of 2"),
    Program("download.py", shown="Extracting"),
    Program("server.py", shown="GET /v1/models"),
)

BAD = (
    Program("shapes.py", ("--ranks", "2"), shown="rank 1: ValueError: shapes (3,4) and (5,) not aligned",
            kind="code", where="shapes.py:9", attempts=2),
    Program("imports.py", shown="rank 0: ModuleNotFoundError: No module named 'torch_geometric_that_is_not_there' (imports.py:2)",
            kind="code", where="imports.py:2"),
    Program("syntax.py", shown="rank 0: SyntaxError: expected ':' (syntax.py:2)", kind="code", where="syntax.py:2"),
    Program("greedy.py", ("--memory", "200MB"), shown="limits.memory is 200MB", kind="memory", attempts=2),
    Program("loader.py", shown="rank 0: OSError: image file is truncated (index 5) (loader.py:11)", kind="data",
            where="loader.py:11", attempts=2),
    Program("typo.sh", shown="rank 0: pyhton: command not found (typo.sh:4)", kind="code", where="typo.sh:4"),
    Program("usage.py", shown="the following arguments are required: --lr", kind="code", attempts=2),
    Program("crash.py", shown="Fatal Python error: Segmentation fault (crash.py:9)", kind="code", where="crash.py:9", attempts=2),
)  # fmt: skip
