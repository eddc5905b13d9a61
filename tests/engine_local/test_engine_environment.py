"""What a rank finds when it starts."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from engine_local.local_gangs import FLEET, Gang, Machine, gang_of, python, sh
from unidle.engine.local import launch
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import RankPlace, Role, StepFlops


def environment_of(gang: Gang, rank: int) -> dict[str, str]:
    return dict(line.split("=", 1) for line in gang.log(rank).splitlines())


def test_ranks_find_the_environment_that_torchrun_gives(machine: Machine) -> None:
    gang = machine.start(sh("env"), 4, attempt=3)
    assert gang.codes() == [0, 0, 0, 0]
    for rank in range(4):
        env = environment_of(gang, rank)
        expected = {
            "RANK": str(rank), "LOCAL_RANK": str(rank // 2), "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": str(rank % 2), "GROUP_WORLD_SIZE": "2", "ROLE_RANK": str(rank),
            "ROLE_WORLD_SIZE": "4", "ROLE_NAME": "default", "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RESTART_COUNT": "2", "TORCHELASTIC_MAX_RESTARTS": "0", "CUDA_VISIBLE_DEVICES": "",
            "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "UNIDLE_JOB": "job", "UNIDLE_ATTEMPT": "3",
        }  # fmt: skip
        assert {name: env.get(name) for name in expected} == expected
        assert env["MASTER_PORT"] == environment_of(gang, 0)["MASTER_PORT"]
        assert env["TORCHELASTIC_RUN_ID"].endswith("-job-3")
        assert env["PATH"].endswith(os.environ["PATH"])


def test_the_jobs_environment_goes_before_the_inherited_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLOUR", "inherited")
    monkeypatch.setenv("SHAPE", "inherited")
    monkeypatch.setenv("UNIDLE_STORE", "elsewhere")
    gang = machine.start(sh("env"), 2, env={"COLOUR": "own", "OMP_NUM_THREADS": "7"})
    gang.ends()
    env = environment_of(gang, 0)
    assert (env["COLOUR"], env["SHAPE"], env["OMP_NUM_THREADS"]) == ("own", "inherited", "7")
    assert "UNIDLE_STORE" not in env


def test_a_gang_of_one_keeps_all_its_threads(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    gang = machine.start(sh("env"))
    gang.ends()
    assert "OMP_NUM_THREADS" not in environment_of(gang, 0)


def test_a_job_without_a_rendezvous_looks_like_one_process(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in launch.RENDEZVOUS:
        monkeypatch.setenv(name, "of an outer launcher")
    gang = machine.start(sh("env"), attempt=2, rendezvous="none")
    gang.ends()
    env = environment_of(gang, 0)
    assert not set(env) & set(launch.RENDEZVOUS)
    own = {"UNIDLE_JOB": "job", "UNIDLE_ATTEMPT": "2", "UNIDLE_RANK": "0", "UNIDLE_RANKS": "1"}
    assert {name: env.get(name) for name in own} == own
    assert env["TORCHELASTIC_RESTART_COUNT"] == "1"  # no rendezvous: how often, not with whom
    assert env["UNIDLE_RUN_ID"].endswith("-job-2")


def test_roles_are_given_also_without_a_rendezvous() -> None:
    command = gang_of(("true",), 1, rendezvous="none", roles=(Role("trainer", ((0, 0),)),))
    (env,) = launch.environments(command, FLEET, 1, "x", {})
    assert (env["ROLE_NAME"], env["ROLE_RANK"], "RANK" in env) == ("trainer", "0", False)


@pytest.mark.parametrize(("flops", "asked"), [(None, False), (StepFlops(1e12), False), (StepFlops(), True)])
def test_ranks_on_any_host_count_operations_only_if_the_job_asks_for_it(
    flops: StepFlops | None, asked: bool
) -> None:
    command = gang_of(("true",), 1, flops=flops)
    (env,) = launch.environments(command, FLEET, 1, "x", {})
    assert ("UNIDLE_COUNT_FLOPS" in env) == asked


def test_gpus_are_named_by_uuid_where_there_is_one() -> None:
    uuids = ("GPU-a", "GPU-b", "")
    devices = tuple(
        Device(f"n/{k}", "n", k, "gpu", uuid=u, slices_ppm=(500_000,) * 2) for k, u in enumerate(uuids)
    )
    command = gang_of(("true",), 2)
    places = (RankPlace(0, "n", ("n/0#0", "n/0#1", "n/1#0")), RankPlace(1, "n", ("n/2#1",)))
    command = type(command)(command.job, command.attempt, command.spec, places)
    envs = launch.environments(command, Fleet(nodes=(Node("n", "site", devices),)), 1, "x", {})
    assert [env["CUDA_VISIBLE_DEVICES"] for env in envs] == ["GPU-a,GPU-b", "2"]


def test_a_rank_has_no_terminal_no_input_and_default_signals(machine: Machine) -> None:
    script = "import os; print(os.getsid(0) == os.getpid() == os.getpgid(0), os.read(0, 1), os.ttyname(1) if os.isatty(1) else None)"
    gang = machine.start(sh(f"grep -E 'Sig(Ign|Blk)' /proc/self/status; exec {python('')[0]} -c '{script}'"))
    assert gang.codes() == [0]
    _, blocked, _, ignored, *rest = gang.log().split()
    # glibc's posix_spawn ignores the two signals that it keeps for itself (32, 33)
    assert (int(blocked, 16), int(ignored, 16) & 0x7FFFFFFF) == (0, 0)
    assert rest == ["True", "b''", "None"]


def test_a_rank_inherits_only_its_streams_and_the_helper_pipe(machine: Machine) -> None:
    code = """
import os
import sys
fd, inode = map(int, os.environ["UNIDLE_RANK_FD"].split(":"))
opened = {n for n in range(256) if os.path.exists(f"/proc/self/fd/{n}")}
print(opened - {0, 1, 2} == {fd}, os.fstat(fd).st_ino == inode, os.get_blocking(fd))
"""
    gang = machine.start(python(code))
    gang.ends()
    assert gang.log().split() == ["True", "True", "False"]


def test_a_rank_runs_in_its_workdir(machine: Machine, tmp_path: Path) -> None:
    gang = machine.start(sh("pwd -P; ls"), workdir=str(tmp_path))
    gang.ends()
    assert gang.log().splitlines()[0] == str(tmp_path.resolve())


def test_every_place_is_given_its_own_local_rank_on_its_node() -> None:
    envs = launch.environments(gang_of(("true",), 8), FLEET, 1, "x", {})
    seen = {(env["GROUP_RANK"], env["LOCAL_RANK"]) for env in envs}
    assert seen == {(str(node), str(local)) for node in range(2) for local in range(4)}


def test_python_is_the_one_beside_unidle_unless_another_environment_is_active() -> None:
    here = str(Path(sys.prefix) / "bin")
    assert sys.prefix != sys.base_prefix  # `make setup` makes a virtual environment, with PyTorch
    assert launch.path_of_ranks({"PATH": "/usr/bin"}) == {"PATH": f"{here}:/usr/bin"}
    for active in ({"VIRTUAL_ENV": "/other"}, {"CONDA_PREFIX": "/other"}):
        assert launch.path_of_ranks({"PATH": "/usr/bin", **active}) == {}
    assert launch.path_of_ranks({"PATH": f"{here}:/usr/bin"}) == {}
