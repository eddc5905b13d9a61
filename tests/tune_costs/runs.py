"""A run of tune with one kept change, and its profiles before and after, for tests of its report."""

from __future__ import annotations

from unidle.tune.edits import Edit
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.marks import StepMark
from unidle.tune.trial.measure import SpeedUp
from unidle.tune.trial.race import TimedSteps
from unidle.tune.trial.results import TriedChange, TuneRun
from unidle.tune.trial.sampled import SampledProfile, SampledStack, StackLine

PROGRAM = """import gc
import torch
torch.autograd.set_detect_anomaly(True)
model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(100):
    loss = model(torch.randn(2, 4)).sum()
    loss.backward()
    optimizer.step()
    gc.collect()
    sorted(range(9))
"""


def stack(part: str, seconds: float, *lines: int) -> SampledStack:
    return SampledStack(part, tuple(StackLine("train.py", line, "<module>") for line in lines), seconds)


def profile(*stacks: SampledStack) -> SampledProfile:
    return SampledProfile(
        10, sum(one.seconds for one in stacks), stacks, {"train.py": tuple(PROGRAM.split("\n"))}
    )


BEFORE = profile(
    stack("forward", 1.0, 7), stack("backward", 2.0, 8), stack("python", 5.0, 10), stack("python", 1.8, 11), stack("optimizer", 0.2, 9)
)  # fmt: skip
AFTER = profile(stack("forward", 1.0, 7), stack("backward", 2.0, 8), stack("optimizer", 0.2, 9))


def result(why: str = "Python collects by itself") -> TuneRun:
    change = TuneChange("UDL206", "train.py", 10, "same", why, (Edit("train.py", "a", "b"),))
    speed = SpeedUp(3.1, 2.9, 3.3, 5)
    patch = "--- a/train.py\n+++ b/train.py\n-    gc.collect()\n+    '<script>'\n"
    marks = (StepMark(1, 1.0, 1.0, 0.0), StepMark(10, 9.0, 9.0, 0.0))
    return TuneRun(
        TrialRun(0, 10.0, 9.5, "", "", marks=marks), TimedSteps(2, 10, 10), SpeedUp(1.0, 0.99, 1.01, 5),
        (TriedChange(change, patch, "kept", why, speed, 3.0),), (change,), speed, patch, "", BEFORE, AFTER, 0.25,
    )  # fmt: skip
