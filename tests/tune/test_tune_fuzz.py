"""No source makes the check fail: random text, mutated programs, random trees, long chains."""

from __future__ import annotations

import ast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tune.programs import forward, loop
from unidle.tune.check import facts_of
from unidle.tune.files import SkippedFile, SourceText
from unidle.tune.noqa import is_silenced
from unidle.tune.notebook import Cells, read_notebook
from unidle.tune.pages import example
from unidle.tune.registry import findings, rules

RULES = rules()
SEEDS = [*(example(code, "Slow") for code in RULES), loop("print(loss)"), forward("return x")]
PIECES = [
    "model", "loss", "x", "self", "torch", "nn", "for i in range(len(x)):", "if step % 10:", "while x:", "def f(x):", "class A(nn.Module):",
    "with torch.no_grad():", "(", ")", "[", "]", ".item()", ".to(device)", "=", "+=", "lambda x:", "*", "**", ", ", ":", "\n    ", "\n",
    "return", "yield", "await", "async", "@torch.compile", "x = x(x)", "model = model", "self.x = self.x", "torch.cat([x, x])", "match x:",
    "case [a, *b]:", "x[i] = x[i - 1]", "del x", "global x", "nonlocal x", "try:", "except* E:", "import x as y", "from . import *",
]  # fmt: skip


def check(text: str) -> None:
    """All rules on a text; whatever it is, nothing is raised."""
    facts = facts_of(SourceText("a.py", "import torch\n" + text, True))
    if facts is None or isinstance(facts, SkippedFile):
        return
    try:
        for one in findings(facts, RULES.values()):
            assert one.line >= 1
            assert one.column >= 1
            is_silenced(one, facts.lines)
    except RecursionError:
        return  # reported as a line by the command


@given(st.text(max_size=400))
def test_random_text(text: str) -> None:
    check(text)


@given(st.lists(st.sampled_from(PIECES), max_size=40))
def test_random_pieces(pieces: list[str]) -> None:
    check(" ".join(pieces))


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_programs_with_parts_exchanged(data: st.DataObject) -> None:
    first, second = (ast.parse(data.draw(st.sampled_from(SEEDS))) for _ in range(2))
    nodes = [
        node
        for node in ast.walk(first)
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    ]
    others = [
        node
        for node in ast.walk(second)
        if isinstance(node, ast.expr) and isinstance(getattr(node, "ctx", ast.Load()), ast.Load)
    ]
    for _ in range(data.draw(st.integers(1, 4))):
        target, source = data.draw(st.sampled_from(nodes)), data.draw(st.sampled_from(others))
        for parent in ast.walk(first):
            for name, value in ast.iter_fields(parent):
                if value is target:
                    setattr(parent, name, source)
    try:
        text = ast.unparse(first)
    except (RecursionError, ValueError, TypeError, AttributeError):
        return
    check(text)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.sampled_from(SEEDS), st.integers(0, 10_000), st.integers(0, 200), st.sampled_from(PIECES))
def test_programs_with_a_part_replaced(text: str, place: int, length: int, piece: str) -> None:
    place %= len(text)
    check(text[:place] + piece + text[place + length :])


@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.text() | st.integers(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["cells", "cell_type", "source"]), inner)
        ),
    )
    .map(repr)
    .map(str.encode)
)
def test_random_notebooks(raw: bytes) -> None:
    assert isinstance(read_notebook(raw), Cells | str)


@pytest.mark.parametrize(
    "text",
    [
        "x = " + " + ".join(["x"] * 3000),
        "x = x" + ".a" * 500,
        "x = x" + "(x)" * 90,
        "if x:\n    pass\n" + "elif x:\n    pass\n" * 900,
        "x = x\n" * 3000,
        "".join(f"x{i} = x{(i + 1) % 900}\n" for i in range(900)),
        "class A(A):\n    def forward(self, x):\n        return self.forward(x)\nclass B(C): pass\nclass C(B): pass\na = A()\na(a)\n",
        "def f(x):\n    return f(g(x))\ndef g(x):\n    return g(f(x))\nf(g(f(1)))\n",
    ],
)
def test_long_and_circular_programs(text: str) -> None:
    check(text)
