"""``unidle profile``: where the time of running, unmodified processes goes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from unidle.api.host_profiles import HostRanks, look_on_hosts, ranks_on_hosts
from unidle.api.profiling import has_ended, look, ranks_of, watched
from unidle.cli.common import need_job, print_json, read_store, read_view, show, warn
from unidle.cli.option_set import with_options
from unidle.cli.profile_options import Options
from unidle.cli.tables import colours
from unidle.errors import BadInput, UnidleError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from unidle.cli.profile_file import Destination
    from unidle.cli.profile_history import PastView
    from unidle.cli.profile_source import Owner
    from unidle.scope.bottlenecks import Machine
    from unidle.scope.model import Profile
    from unidle.scope.rules import RuleSet
    from unidle.scope.summary import ProfileReport
    from unidle.scope.targets import ProfileTarget


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("profile")(profile)


@with_options(options=Options)
def profile(options: Options) -> None:
    """Show where a running process or job spends its time. The process needs no change.

    Exit codes: 0 shown; 2 bad input; 3 not permitted or not possible here; 5 the target ended before a sample was taken.
    """
    from unidle.cli.profile_file import Destination
    from unidle.cli.profile_source import add_owners, owners_of
    from unidle.scope.rules_file import all_rules

    options.check()
    if options.injection:
        _show_injection()
        return
    wanted = Destination.of(options.form, options.out)
    wanted.check(as_json=options.as_json)
    rules = all_rules(*([options.rules] if options.rules is not None else []))
    if options.saved is not None and options.against is not None:
        _tell_saved(options, rules, wanted)
    elif options.saved is not None:
        _tell(_with_imports(_read(options.saved), options), rules, None, wanted, options.as_json)
    elif options.is_past:
        _tell_past(options, rules, wanted)
    else:
        if options.top:
            from unidle.cli.profile_top import check_terminal

            check_terminal()
        target = _found(options)
        if isinstance(target, HostRanks):
            seen = _once_on_hosts(target, options)
            _tell(_with_imports(seen, options), rules, None, wanted, options.as_json)
            return
        owners = owners_of(target.pids)
        seen, machine = _look(target, options, rules)
        add_owners(owners, (process.pid for process in seen.processes))
        _tell(_with_imports(seen, options), rules, machine, wanted, options.as_json, owners=owners)


def look_at(options: Options) -> tuple[ProfileReport, Callable[[str, int], str | None]]:
    """A profile of what runs now, and how to read lines of its code. Errors: BadInput, CannotRun, TargetEnded."""
    from unidle.cli.profile_source import add_owners, line_of_source, owners_of
    from unidle.scope.rules_file import all_rules
    from unidle.scope.summary import report_of

    options.check()
    rules, target = all_rules(), _found(options)
    if isinstance(target, HostRanks):
        return report_of(_once_on_hosts(target, options), rules), lambda _file, _line: None
    owners = owners_of(target.pids)
    seen, machine = _look(target, options, rules)
    add_owners(owners, (process.pid for process in seen.processes))
    return report_of(seen, rules, machine), line_of_source(seen, owners)


def _show_injection() -> None:
    """Two lines for a shell. The directory is the user's own. Errors: CannotRun."""
    import shlex

    from unidle.cli.common import data_dir
    from unidle.engine.local import injection

    found = injection.variables(str(data_dir() / injection.FOLDER))
    Path(found[injection.DIRECTORY]).mkdir(0o700, parents=True, exist_ok=True)
    for name, value in found.items():
        show(f"export {name}={shlex.quote(value)}")


def _read(path: str) -> Profile:
    """A profile that was saved, by unidle or another tool. Errors: BadInput."""
    from unidle.scope.tiers import imported

    return imported.read(path)


def _with_imports(profile: Profile, options: Options) -> Profile:
    """With what other tools' files tell of devices. Errors: BadInput."""
    from unidle.scope.tiers import imported

    for file in options.imports or ():
        profile = imported.merge(profile, file)
    return profile


def _look(target: ProfileTarget, options: Options, rules: RuleSet) -> tuple[Profile, Machine | None]:
    """Look at what runs now. Errors: BadInput, CannotRun, TargetEnded."""
    if not options.top:
        return _once(target, options)
    from unidle.cli.profile_top import top

    with watched(target, **options.look()) as watch:
        seen = top(watch, target, rules, options.seconds)
    if seen is None:
        raise has_ended(target)
    return seen, None


def _found(options: Options) -> ProfileTarget | HostRanks:
    """The processes that the user means, or ranks on hosts that have joined. Errors: BadInput, CannotRun."""
    from unidle.scope.targets import of_process

    if options.target is not None and options.is_process:
        if options.rank is not None:
            raise BadInput(
                "is for jobs", field="--rank", value=options.rank, remedy="leave it out, or name the job"
            )
        return of_process(int(options.target), children=options.children)
    opened = read_store(options.store)
    job = need_job(read_view(opened), options.target, live=True, started=True)
    if (hosts := ranks_on_hosts(opened, job, options.ranks)) is not None:
        if options.top:
            raise BadInput("is not possible for ranks on hosts", field="--top", value=job.id, remedy="leave it out, or run `unidle profile PID --top` on the host")  # fmt: skip
        return hosts
    return ranks_of(opened, job, options.ranks, children=options.children)


def _once_on_hosts(wanted: HostRanks, options: Options) -> Profile:
    """The look by the agents of the hosts. Ctrl-C ends it early and keeps what was seen."""
    from unidle.cli.profile_live import LiveLine

    with LiveLine(options.seconds) as progress:
        return look_on_hosts(wanted, options.seconds, progress.goes_on, **options.look())


def _once(target: ProfileTarget, options: Options) -> tuple[Profile, Machine]:
    """The look itself. Ctrl-C ends it early and keeps what was seen."""
    from unidle.cli.profile_live import LiveLine

    with LiveLine(options.seconds) as progress:
        return look(target, options.seconds, progress.goes_on, **options.look())


def _tell_past(options: Options, rules: RuleSet, wanted: Destination) -> None:
    """What was kept of a job, or what changed between two parts of it."""
    from unidle.cli.profile_history import answer_of

    _tell_answer(answer_of(options.question()), options, rules, wanted)


def _tell_saved(options: Options, rules: RuleSet, wanted: Destination) -> None:
    """What changed between two profiles that were saved."""
    from unidle.cli.profile_history import PastView

    after, before = str(options.saved), str(options.against)
    _tell_answer(
        PastView(_with_imports(_read(after), options), after, _read(before), before), options, rules, wanted
    )


def _tell_answer(past: PastView, options: Options, rules: RuleSet, wanted: Destination) -> None:
    from unidle.cli.profile_history import difference_json, difference_lines
    from unidle.cli.profile_live import safe

    if past.other is None or wanted.form is not None:
        if not (options.as_json or wanted.to_stdout):
            show(safe(past.source))
        page = {"before": past.other, "before_name": past.other_source} if past.other else {}
        _tell(past.profile, rules, None, wanted, options.as_json, page)
    elif options.as_json:
        print_json(difference_json(past, rules))
    else:
        for line in difference_lines(past, rules):
            show(safe(line))


def _tell(
    profile: Profile, rules: RuleSet, machine: Machine | None, wanted: Destination, as_json: bool,
    page: Mapping[str, Any] | None = None, owners: Mapping[int, Owner] | None = None,
) -> None:  # fmt: skip
    """The first screen or its JSON, and the file that was asked for; ``page``: what only a page shows; ``owners``: of the
    processes, None for a profile that was kept.

    A file that cannot be written takes nothing from what was seen: that is shown first, or next to the error.
    """
    from unidle.scope.summary import report_of

    report = report_of(profile, rules, machine)
    if wanted.to_stdout:
        _write(report, wanted, page)
        return
    if not as_json:
        _show(report, owners)
        _write(report, wanted, page)
        return
    try:
        _write(report, wanted, page)
    except UnidleError as error:
        print_json({**_answer(report), **error.to_json()})
        warn(error.line())
        sys.exit(error.exit_code)
    print_json(_answer(report))


def _answer(report: ProfileReport) -> dict[str, Any]:
    from unidle.scope.profile_json import answer

    return answer(report)


def _show(report: ProfileReport, owners: Mapping[int, Owner] | None) -> None:
    from unidle.cli.profile_live import safe
    from unidle.cli.profile_source import line_of_source
    from unidle.scope.screen import screen

    for line in screen(report, colour=colours(), source=line_of_source(report.profile, owners or {})):
        show(safe(line))


def _write(report: ProfileReport, wanted: Destination, page: Mapping[str, Any] | None) -> None:
    from unidle.scope.serving_view import view_facts
    from unidle.scope.summary import category_of

    if wanted.form is None:
        return
    more = {"category": category_of(report), "serving": view_facts(report.serving), **(page or {})}
    place = wanted.write(report.profile, lambda: _answer(report), more)
    if place:
        warn(f"wrote {place}")
