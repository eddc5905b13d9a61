"""The talk with a model: answers in all forms become edits, rejections with a reason, or its end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tune.endpoints import edits, says, served, streams
from unidle.tune.edits import Edit, apply_edits
from unidle.tune.endpoint.answer import UnusableAnswer, edits_of
from unidle.tune.endpoint.client import ModelClient
from unidle.tune.endpoint.settings import ModelEndpoint
from unidle.tune.endpoint.talk import MOST_CODE, HotLine, JudgedEdits, TriedEdits, messages, talk

PROGRAM = "import torch\n\nfor step in range(9):\n    loss = torch.ones(2).sum()\n    print(loss.item())\n"
ONE = {"file": "train.py", "old": "ones", "new": "zeros", "why": "w"}
TEXT = json.dumps({"edits": [ONE]})
HOT = [HotLine("train.py", 4, 61.0, "built in each step")]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "train.py").write_text(PROGRAM)
    return tmp_path / "tree"


def run(url: str, tree: Path, outcomes: list[JudgedEdits], rounds: int = 8) -> list[TriedEdits]:
    """A judge that applies what it keeps, as `unidle tune` does."""

    def judge(change: tuple[Edit, ...]) -> JudgedEdits:
        judged = outcomes.pop(0)
        if judged.outcome == "kept":
            apply_edits(tree, change)
        return judged

    return talk(ModelClient(ModelEndpoint(url, "small")), tree, lambda: HOT, judge, rounds=rounds)


@pytest.mark.parametrize(
    "text",
    [
        TEXT,
        f"```json\n{TEXT}\n```",
        f"Here it is:\n\n~~~\n{TEXT}\n~~~\nDone {{}}.",
        f'<think>maybe {{"edits": []}}</think>{TEXT}',
        f"I change this: {TEXT} and {{nothing}} else",
        json.dumps({"reason": "r", "edits": [{**ONE, "confidence": 3}]}, indent=2),
    ],
)
def test_edits_are_read_fenced_or_not(text: str) -> None:
    assert edits_of(text) == (Edit("train.py", "ones", "zeros", "w"),)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "no JSON objects"),
        ("I would not change a thing.", "no JSON objects"),
        (TEXT[:-3], "no JSON objects"),
        (TEXT.replace('"', "'"), "no JSON objects"),
        (f"{TEXT}\n{TEXT}", "2 JSON objects"),
        (f"```\n{TEXT}\n```\n```\n{TEXT}\n```", "has 2 objects"),
        ('{"edits": {}}', "is no list"),
        ('{"edits": [3]}', r"edits\[0\] is no object"),
        ('{"edits": [{"file": "a", "old": 3, "new": ""}]}', 'no text "old"'),
        ('{"edits": [], "edits": []}', "occurs twice"),
        (json.dumps({"edits": [ONE] * 51}), "limit of 50"),
        ("{" * 100_000, "no JSON objects"),
        ("[" * 100_000, "no JSON objects"),
        ('{"a":' * 100_000, "no JSON objects"),
    ],
)
def test_an_answer_that_is_no_change_is_refused_with_the_reason(text: str, match: str) -> None:
    with pytest.raises(UnusableAnswer, match=match):
        edits_of(text)


@given(st.text(alphabet='{}[]":,edits `~\n\\', max_size=200))
def test_no_answer_fails_in_another_way(text: str) -> None:
    try:
        edits_of(text)
    except UnusableAnswer:
        pass


def test_the_model_sees_why_a_try_was_rejected_and_the_code_after_one_was_kept(tree: Path) -> None:
    other = {**ONE, "old": "range(9)", "new": "range(10)"}
    with served(edits(ONE), streams(json.dumps({"edits": [other]})), edits()) as model:
        tries = run(
            model.url, tree, [JudgedEdits("kept", "1.4x"), JudgedEdits("rejected", "losses differ at step 3")]
        )
    assert [one.judged.outcome for one in tries] == ["kept", "rejected"]
    assert "61.0 % train.py:4 built in each step" in model.seen(0)
    assert "torch.ones(2)" in model.seen(0)
    assert "torch.zeros(2)" in model.seen(1)
    assert "losses differ at step 3" in model.seen(2)
    assert not model.wrong


def test_an_answer_that_cannot_be_applied_is_a_rejected_round_that_the_model_sees(
    tree: Path, tmp_path: Path
) -> None:
    (tmp_path / "out.py").write_text("ones")
    answers = [
        says("no idea"), edits({**ONE, "file": "../out.py"}), edits({**ONE, "old": "loss"}),
        edits({**ONE, "new": "(("}), edits(ONE), edits(ONE), edits(),
    ]  # fmt: skip
    with served(*answers) as model:
        tries = run(model.url, tree, [JudgedEdits("rejected", "slower")])
    reasons = [one.judged.why for one in tries]
    assert [one.judged.outcome for one in tries] == ["rejected"] * 6
    for reason, part in zip(
        reasons,
        ("cannot be read", "not in the tree", "2 times", "not valid Python", "slower", "as in round 5"),
        strict=True,
    ):
        assert part in reason
    assert all(part in model.seen(6) for part in ("2 times", "not valid Python", "as in round 5"))
    assert (tree / "train.py").read_text() == PROGRAM
    assert (tmp_path / "out.py").read_text() == "ones"


def test_rounds_bound_the_talk(tree: Path) -> None:
    with served(says("no idea")) as model:
        assert len(run(model.url, tree, [], rounds=3)) == 3
    assert len(model.requests) == 3


def test_code_in_a_request_is_bounded_and_stays_in_the_tree(tree: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.py").write_text("hidden = 1\n")
    (tree / "linked.py").symlink_to(tmp_path / "secret.py")
    (tree / "long.py").write_text("".join(f"x = {at}\n" for at in range(1000)))
    (tree / "wide.py").write_text(f"y = '{'z' * MOST_CODE}'\n")
    hot = [
        HotLine("linked.py", 1, 9, ""),
        HotLine("long.py", 500, 9, ""),
        HotLine("long.py", 530, 5, ""),
        HotLine("wide.py", 1, 3, ""),
    ]
    text = messages(tree, [*hot, HotLine("../secret.py", 1, 9, ""), HotLine("gone.py", 1, 1, "")], [])[-1][
        "content"
    ]
    assert "hidden" not in text
    assert "long.py, lines 460 to 570:" in text
    assert "zzz" not in text
