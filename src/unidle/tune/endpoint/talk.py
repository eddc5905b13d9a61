"""The talk with a model: it sees profile, code and rejected tries, and proposes one change in each round."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from unidle.tune.edits import Edit, EditRefused, planned
from unidle.tune.endpoint.answer import UnusableAnswer, edits_of
from unidle.tune.endpoint.client import ModelClient

Outcome = Literal["kept", "rejected", "inconclusive"]

MOST_CODE: Final = 60_000
"""Characters of code in one request."""
_AROUND: Final = 40
"""Lines around a hot one that the model sees."""
_TRIES_SHOWN: Final = 12
_SYSTEM: Final = """\
You make a training program faster without changing what it computes. Answer with one JSON object and nothing else:
{"edits": [{"file": "path", "old": "text that occurs exactly once in the file", "new": "its replacement", "why": "one sentence"}]}
All edits of an answer are one change. Copy `old` from the file, with its indentation. Edit only files that you are shown.
Losses, gradients, parameters, order of samples, evaluation and checkpoints stay the same. Refused: changes of timers, seeds, numbers
of steps, data or tests; work moved to another thread, made lazy or cached from an earlier step; code that depends on being measured.
If no change is worth a try, answer {"edits": []}."""


@dataclass(frozen=True, slots=True)
class HotLine:
    """A place that costs time: ``share_pct`` of a step, and what is known about it."""

    file: str
    line: int
    share_pct: float
    message: str


@dataclass(frozen=True, slots=True)
class JudgedEdits:
    """What became of a change, and why."""

    outcome: Outcome
    why: str


@dataclass(frozen=True, slots=True)
class TriedEdits:
    """One round: what was proposed, and what became of it. No ``edits``: the answer could not be read."""

    round: int
    edits: tuple[Edit, ...]
    judged: JudgedEdits


def talk(
    client: ModelClient, tree: Path, profile: Callable[[], Sequence[HotLine]], judge: Callable[[tuple[Edit, ...]], JudgedEdits], *, rounds: int,
) -> list[TriedEdits]:  # fmt: skip
    """Up to ``rounds`` proposals for ``tree``. ``profile`` is called for each: a kept change moves the lines.

    ``judge`` gets edits that can be applied, and decides. The talk ends when the model proposes none.
    Errors: :class:`unidle.tune.endpoint.client.EndpointFailed`.
    """
    tries: list[TriedEdits] = []
    for number in range(1, rounds + 1):
        text = client.ask(messages(tree, profile(), tries))
        edits: tuple[Edit, ...] = ()
        try:
            edits = edits_of(text)
            if not edits:
                break
            planned(tree, edits)
            judged = _known(edits, tries) or judge(edits)
        except UnusableAnswer as error:
            judged = JudgedEdits("rejected", f"the answer cannot be read: {error}")
        except EditRefused as error:
            judged = JudgedEdits("rejected", error.line())
        tries.append(TriedEdits(number, edits, judged))
    return tries


def _known(edits: tuple[Edit, ...], tries: Sequence[TriedEdits]) -> JudgedEdits | None:
    """A change that was rejected is not tried twice."""
    change = {(one.file, one.old, one.new) for one in edits}
    for one in tries:
        if one.judged.outcome != "kept" and {(edit.file, edit.old, edit.new) for edit in one.edits} == change:
            return JudgedEdits("rejected", f"the same change as in round {one.round}: {one.judged.why}")
    return None


def messages(tree: Path, hot: Sequence[HotLine], tries: Sequence[TriedEdits]) -> list[dict[str, str]]:
    """What the model is sent: instructions, then profile, code and tries."""
    parts = ["Where a step spends its time:"]
    parts += [f"- {one.share_pct:.1f} % {one.file}:{one.line} {one.message}" for one in hot]
    parts += ["", *_code(tree, hot)]
    if tries:
        parts += ["Earlier tries, and what became of them:"]
        parts += [
            json.dumps({
                "edits": [{"file": e.file, "old": e.old[:2_000], "new": e.new[:2_000]} for e in one.edits],
                "outcome": one.judged.outcome, "why": one.judged.why[:1_000],
            })
            for one in tries[-_TRIES_SHOWN:]
        ]  # fmt: skip
    return [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": "\n".join(parts)}]


def _code(tree: Path, hot: Sequence[HotLine]) -> list[str]:
    """Code around hot lines, each line once, most expensive files first; whole files where they are short."""
    wanted: dict[str, set[int]] = {}
    for one in sorted(hot, key=lambda one: -one.share_pct):
        wanted.setdefault(one.file, set()).update(range(one.line - _AROUND, one.line + _AROUND + 1))
    parts: list[str] = []
    left = MOST_CODE
    for file, numbers in wanted.items():
        try:
            lines = _text(tree, file).split("\n")
        except (OSError, ValueError):
            continue
        if len(lines) <= 4 * _AROUND:
            numbers = set(range(1, len(lines) + 1))
        for first, last in _runs(sorted(n for n in numbers if 1 <= n <= len(lines))):
            text = "\n".join(lines[first - 1 : last])
            if len(text) > left:
                continue
            left -= len(text)
            parts += [f"{file}, lines {first} to {last}:", "```python", text, "```", ""]
    return parts


def _text(tree: Path, file: str) -> str:
    path = (tree / file).resolve()
    if not path.is_relative_to(tree.resolve()):
        raise ValueError(file)
    return path.read_text(encoding="utf-8")


def _runs(numbers: Sequence[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1] = (runs[-1][0], number)
        else:
            runs.append((number, number))
    return runs
