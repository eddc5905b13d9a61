"""A controller with a certificate of the site: it names a host, and neither the address where the controller listens nor `unidle-hub`."""

from __future__ import annotations

import json
from contextlib import ExitStack
from pathlib import Path

import pytest

from box.small_hub import certificates
from e2e.commands import unidle
from e2e.gangs import submit
from e2e.host_fleets import HOSTS, Fleet
from waiting import wait_until

WORKS = "echo ready $RANK; exec python3 -c 'import time\ndef train_it():\n  while True: sum(range(400_000)); time.sleep(0.04)\ntrain_it()'"


def fleet_of(place: Path, stack: ExitStack, *, public: bool) -> Fleet:
    """``public``: the systems of the hosts know the authority, and nothing else here does; else the join file has it."""
    certificate, key, _ = certificates(place, "DNS:localhost")
    fleet = Fleet(place, stack)
    authority = () if public else ("--authority", place / "ca.pem")
    fleet.serve("--certificate", certificate, "--key", key, *authority)
    fleet.address = "localhost"
    for node in HOSTS:
        if public:
            fleet.env[node] = {"SSL_CERT_FILE": str(place / "ca.pem")}
        fleet.join(node)
    fleet.joined()
    return fleet


@pytest.mark.slow
@pytest.mark.parametrize("public", [True, False])
def test_commands_reach_ranks_of_hosts_that_verify_a_certificate_of_the_site(
    public: bool, tmp_path: Path
) -> None:
    with ExitStack() as stack:
        fleet = fleet_of(tmp_path, stack, public=public)
        job = submit(fleet.store, tmp_path / "works.json", WORKS, ranks=2, device="cpu")
        store = ("--store", fleet.store)

        def printed() -> bool:
            done = unidle("logs", job, *store)
            assert done.returncode == 0, done.stderr
            return {f"[{rank}] ready {rank}" for rank in range(2)} <= set(done.stdout.splitlines())

        wait_until(lambda: (found := fleet.job(job)) is not None and found.attempts, 60)
        wait_until(printed, 60)
        page = tmp_path / "p.json"
        done = unidle("profile", job, "--seconds", "1", "--tier", "T2", "--out", page, *store)
        assert done.returncode == 0, done.stderr
        assert sorted(row["rank"] for row in json.loads(page.read_text())["ranks"]) == [0, 1]
        fleet.agents["n1"].terminate()
        assert fleet.agents["n1"].wait(60) == 0
        forgotten = unidle("guard", "forget-host", "n1", *store)
        assert "cannot be reached" not in forgotten.stderr, (
            forgotten.stderr
        )  # whether it may be forgotten is another question
        unidle("cancel", job, *store)
        wait_until(lambda: not fleet.boxes(), 60)
