"""The story of a job as HTML: what went wrong, how fast it was, what was run. Reads without scripts."""

from __future__ import annotations

from collections.abc import Sequence

from unidle.page.frame import escaped
from unidle.report.fill_html import fillers
from unidle.report.model import EventLine, Hang, JobStory, Problem, ReportData
from unidle.report.plot import figures, plots
from unidle.report.text import number
from unidle.words import plural


def stories(data: ReportData) -> str:
    """One section: the job's story, or one to open for each of the newest jobs."""
    if not data.stories:
        return ""
    lines = {line.job: line for line in data.jobs}
    parts, first = [], 0
    for story in data.stories:
        body = _story(story, data.events, first)
        first += len(figures(story))
        line = lines.get(story.job)
        if len(data.stories) == 1:
            parts.append(body)
        else:
            state = f' <span class="state">{escaped(line.state)}</span>' if line else ""
            why = f" <span class=quiet>{escaped(line.reason)}</span>" if line and line.reason else ""
            parts.append(
                f"<details><summary><b><bdi>{escaped(story.job)}</bdi></b>{state}{why}</summary>{body}</details>"
            )
    older = len(data.jobs) - len(data.stories)
    note = (
        f'<p class="quiet note">{number(older)} older {plural(older, "job")}: <code>unidle report JOB</code></p>'
        if older > 0
        else ""
    )
    title = "The job" if len(data.stories) == 1 else "The jobs"
    return f'<section id="story"><h2>{title}</h2>{"".join(parts)}{note}</section>'


def _story(story: JobStory, events: Sequence[EventLine], first: int) -> str:
    return "".join(
        (
            _problem(story.problem),
            _hang(story.hang),
            plots(story, events, first),
            fillers(story.fill),
            _what(story),
        )
    )


def _problem(problem: Problem | None) -> str:
    if problem is None:
        return ""
    named = f"attempt {problem.attempt}: " if problem.attempt else ""
    head = f"<p><b>{named}<bdi>{escaped(problem.headline)}</bdi></b></p>"
    note = f'<p class="quiet">{escaped(problem.note)}</p>' if problem.note else ""
    more = f" <code>{escaped(problem.next)}</code>" if problem.next else ""
    advice = f"<p>{escaped(problem.help)}{more}</p>" if problem.help or more else ""
    whose = "the rank that printed an error" if problem.rank is None else f"rank {problem.rank}"
    lines = _lines(f"last lines of {whose}", problem.lines)
    return f'<div class="problem">{head}{lines}{note}{advice}</div>'


def _hang(hang: Hang | None) -> str:
    if hang is None:
        return ""
    frames = "".join(_lines(f"rank {rank}, deepest last", lines) for rank, lines in hang.frames)
    return f'<div class="problem"><p><b>attempt {hang.attempt} hung:</b> <bdi>{escaped(hang.text)}</bdi></p>{frames}</div>'


def _lines(title: str, lines: Sequence[str]) -> str:
    if not lines:
        return ""
    body = "\n".join(map(escaped, lines))
    return f'<p class="quiet">{escaped(title)}</p><pre dir="ltr">{body}</pre>'


def _what(story: JobStory) -> str:
    facts = "".join(
        f"<dt>{escaped(name)}</dt><dd><bdi>{escaped(text)}</bdi></dd>" for name, text in story.facts
    )
    env = "\n".join(f"{escaped(name)}={escaped(value)}" for name, value in story.env)
    shown = f"<dt>environment</dt><dd><pre>{env}</pre></dd>" if env else ""
    command = f"<dt>command</dt><dd><code>{escaped(story.command)}</code></dd>"
    return f'<dl class="facts">{command}{facts}{shown}</dl>'
