"""Edits for tests: the text after the edit of the only finding of a rule."""

from __future__ import annotations

from textwrap import dedent

from unidle.tune.check import facts_of
from unidle.tune.files import SkippedFile, SourceText
from unidle.tune.fixes.changes import planned_in
from unidle.tune.fixes.rewrite import rewritten
from unidle.tune.settings import TuneSettings


def after(text: str, code: str) -> str | None:
    """The text after the first edit of a rule; None where it finds nothing that has an edit."""
    text = dedent(text)
    source = SourceText("code.py", text, True)
    facts = facts_of(source)
    assert facts is not None
    assert not isinstance(facts, SkippedFile)
    for _, plan in planned_in(source, facts, TuneSettings(select=(code,))):
        return rewritten(facts, plan)
    return None


def changed(text: str, code: str) -> tuple[list[str], list[str]]:
    """The lines that an edit takes out and puts in, without indent."""
    new = after(text, code)
    assert new is not None, f"{code} has no edit here"
    before, now = dedent(text).splitlines(), new.splitlines()
    out = [line.strip() for line in before if line.strip() and before.count(line) > now.count(line)]
    put = [line.strip() for line in now if line.strip() and now.count(line) > before.count(line)]
    return out, put
