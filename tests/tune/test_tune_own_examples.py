"""The examples of this repository: what is found in them is known, and has its reason."""

from __future__ import annotations

from pathlib import Path

from unidle.tune.check import check_paths
from unidle.tune.settings import TuneSettings

ROOT = Path(__file__).resolve().parents[2]
EXPLAINED = {
    # float64, so that a run that was resumed ends with the same bits as one that was not
    ("examples/checkpoint/train.py", "UDL306"),
    ("examples/drill/train.py", "UDL306"),
    # the output of each step is what the example shows: steps are read from it
    ("examples/checkpoint/train.py", "UDL203"),
    ("examples/drill/train.py", "UDL203"),
    # small models for the CPU, whose results are compared between versions: fused sums differ in the last digits
    ("examples/gpt/train.py", "UDL501"),
    ("examples/profile/documents.py", "UDL501"),
    ("examples/profile/language.py", "UDL501"),
    # slow on purpose: `make demo-tune` makes it faster
    *(("examples/tune/train.py", code) for code in ("UDL103", "UDL303", "UDL403", "UDL404", "UDL405")),
}


def test_all_findings_in_the_examples_are_explained() -> None:
    result = check_paths(
        [str(ROOT / "examples"), str(ROOT / "tests" / "examples"), str(ROOT / "docs")], TuneSettings()
    )
    assert result.skipped == ()
    found = {(Path(one.file).resolve().relative_to(ROOT).as_posix(), one.code) for one in result.findings}
    assert found == EXPLAINED
