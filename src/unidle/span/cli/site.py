"""``unidle span run --site``: one launcher on each site's host; that of the first site in the file decides."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from unidle.cli.common import data_dir, say, warn
from unidle.errors import BadInput

if TYPE_CHECKING:
    from unidle.span.files.train import RunRequest
    from unidle.span.run.coordinator import RunOptions
    from unidle.span.run.hosts import RunHosts
    from unidle.span.wan import Endpoint

_LATE_S: Final = 20.0  # records of other sites may come so much after the end of this one


def run_site(
    wanted: RunRequest, site: str, host: str | None, store: str | None, options: RunOptions, wait_s: float,
    *, begin_without: bool, as_json: bool,
) -> int:  # fmt: skip
    """Start this site's devices when all sites have come, or after ``wait_s`` with those that have; the exit code."""
    from unidle.control.job_ids import new_job_id
    from unidle.span.rank.member import SECRET
    from unidle.span.run.hosts import hosts_of_site, launcher_of

    secret = os.environ.get(SECRET, "")
    if not secret:
        raise BadInput(
            "is not set",
            field=SECRET,
            remedy="all sites need the same value, for instance from: python3 -c 'import secrets; print(secrets.token_hex(32))'",
        )
    addresses = wanted.training.hosts
    launcher, every = launcher_of(wanted.setting, addresses, site, host)
    hosts = hosts_of_site(wanted.setting, addresses, launcher, wanted.training.device)
    address = store or str(data_dir() / "span" / f"{new_job_id('span')}.db")
    tell: Callable[[str], None] = (lambda _: None) if as_json else say
    tell(f"{hosts.how}; log and ledger: {address}")
    launch = _Launch(wanted, launcher, every[1:], hosts, secret, address, wait_s, tell)
    if launcher == every[0]:
        return _lead(launch, options, begin_without=begin_without, as_json=as_json)
    return _follow(launch)


@dataclass(frozen=True, slots=True)
class _Launch:
    """``others``: all launchers but the one that decides; ``store``: where this one's log goes."""

    wanted: RunRequest
    launcher: str
    others: list[str]
    hosts: RunHosts
    secret: str
    store: str
    wait_s: float
    tell: Callable[[str], None]


def _run_name(wanted: RunRequest) -> str:
    return "span " + " ".join(site.name for site in wanted.setting.sites)


def _lead(launch: _Launch, options: RunOptions, *, begin_without: bool, as_json: bool) -> int:
    from unidle.cli.run import caught
    from unidle.span.cli.run_report import RunEnd, interrupted, report
    from unidle.span.rank.mesh import contexts
    from unidle.span.run.coordinator import Coordinator
    from unidle.span.run.follower import digest_of
    from unidle.span.run.gang import gang_of
    from unidle.span.run.hosts import launcher_address
    from unidle.span.run.launchers import LEADER, LocalLauncher, RemoteLaunchers, gathered, named, settings
    from unidle.span.wan import Endpoint, PortTaken

    wanted, hosts, tell = launch.wanted, launch.hosts, launch.tell
    host, port = launcher_address(wanted.setting, wanted.training.hosts)
    try:
        endpoint = Endpoint(
            LEADER, run=_run_name(wanted), secret=launch.secret.encode(), listen=(host, port), settings=settings(),
            tls_server=contexts(wanted.training.tls)[0],
        )  # fmt: skip
    except PortTaken as error:
        raise BadInput(
            str(error), field="sites.hosts", value=f"{host}:{port}", remedy="give ADDRESS:PORT another"
        ) from None
    with endpoint:
        talks = gathered(endpoint, launch.others, launch.wait_s, tell, all_of_them=not begin_without)
        missing = [name for name in launch.others if name not in talks]
        optimizer = launch.wanted.training.optimizer
        with (
            caught() as signals,
            gang_of(hosts, "span", launch.store, data_dir(), optimizer, launch.secret) as gang,
        ):
            here = LocalLauncher(gang, _mine(hosts))
            launchers = RemoteLaunchers(
                here, talks, digest_of(wanted), tell, lambda name: endpoint.accept(named(name)), missing
            )
            coordinator = Coordinator(wanted, hosts, gang, launchers, tell, options)
            until = [0.0]

            def turn(seen) -> bool:  # type: ignore[no-untyped-def]
                here.see(seen)
                ended = coordinator.turn(seen) or interrupted(signals, gang, seen)
                if not ended or coordinator.is_over or seen.state != "succeeded":
                    return ended
                until[0] = until[0] or time.monotonic() + _LATE_S
                return time.monotonic() > until[0]

            try:
                job = gang.run(turn)
            finally:
                launchers.over()
            done = RunEnd(
                coordinator, job, gang, launch.store, bool(signals.interrupts or signals.terminates)
            )
    report(done, {}, as_json=as_json)
    return 0 if done.state == "succeeded" else done.code


def _mine(hosts: RunHosts) -> frozenset[str]:
    from unidle.span.rank.member import dashed

    nodes = {str(node["id"]) for node in hosts.nodes}
    return frozenset(name for name in hosts.addresses if dashed(name) in nodes)


def _follow(launch: _Launch) -> int:
    from unidle.cli.run import caught
    from unidle.span.cli.run_report import interrupted
    from unidle.span.rank.mesh import contexts
    from unidle.span.run.follower import Follower
    from unidle.span.run.gang import gang_of
    from unidle.span.run.hosts import launcher_address
    from unidle.span.run.launchers import LauncherChannel, LocalLauncher, named, settings
    from unidle.span.wan import Endpoint

    wanted, hosts, tell = launch.wanted, launch.hosts, launch.tell
    with Endpoint(
        named(launch.launcher), run=_run_name(wanted), secret=launch.secret.encode(), settings=settings(),
        tls_client=contexts(wanted.training.tls)[1],
    ) as endpoint:  # fmt: skip
        first = launcher_address(wanted.setting, wanted.training.hosts)
        talk = LauncherChannel(_opened(endpoint, first, launch.wait_s, tell))
        optimizer = launch.wanted.training.optimizer
        with (
            caught() as signals,
            gang_of(hosts, "span", launch.store, data_dir(), optimizer, launch.secret) as gang,
        ):
            follower = Follower(wanted, gang, LocalLauncher(gang, _mine(hosts)), talk, tell)
            job = gang.run(lambda seen: follower.turn(seen) or interrupted(signals, gang, seen))
            follower.turn(job)
            because = "" if job.state == "succeeded" else job.because.text if job.because else job.state
            follower.end("" if follower.error else because)
    if follower.error is not None:
        raise follower.error
    if because:
        warn(f"{job.id} {job.state}: {because}")
    else:
        say(f"{job.id} {job.state}; where its time went: unidle ledger --store {launch.store}")
    return 0 if not because else 1


def _opened(endpoint: Endpoint, address: tuple[str, int], wait_s: float, tell: Callable[[str], None]):  # type: ignore[no-untyped-def]
    """The channel to the first site's launcher, once it answers. Errors: :class:`CannotRun`."""
    from unidle.errors import CannotRun
    from unidle.span.run.launchers import LEADER
    from unidle.span.wan import WanError

    end = time.monotonic() + wait_s
    while True:
        channel = endpoint.connect(LEADER, address)
        try:
            channel.wait_open(min(10.0, max(end - time.monotonic(), 0.1)))
        except WanError as error:
            channel.close(0.1)
            if time.monotonic() >= end or type(error).__name__ == "Refused":
                raise CannotRun(
                    f"the launcher of the first site does not answer at {address[0]}:{address[1]}: {error}", field="--site",
                    remedy="start it there, with the same file and UNIDLE_SPAN_SECRET; see the first site's hosts",
                ) from None  # fmt: skip
            tell(f"waits for the first site at {address[0]}:{address[1]}")
        else:
            return channel
