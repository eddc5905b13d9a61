"""A Slurm cluster on this machine: a real slurmctld, one slurmd for each node, and MUNGE with a key of its own."""

from __future__ import annotations

import contextlib
import getpass
import os
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import ports
from waiting import wait_until

NODES = ("n1", "n2")
_END_WITHIN_S = 40

_CONF = """
ClusterName=unidle
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
CredType=cred/munge
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


class SlurmCluster:
    """``environ``: what Slurm's commands need to find the cluster."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.conf = place / "slurm.conf"
        self.environ = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self, stack: ExitStack) -> None:
        """Start the daemons, and wait until all nodes are idle. ``stack`` ends them."""
        first = ports.block()
        text = _CONF.format(host=socket.gethostname(), port=first, user=getpass.getuser(), place=self.place)
        for at, node in enumerate(NODES, 1):
            text += f"NodeName={node} NodeHostname=localhost NodeAddr=127.0.0.1 Port={first + at} CPUs=1\n"
            (self.place / node).mkdir()
        (self.place / "state").mkdir()
        self.conf.write_text(text)
        key = self.place / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        stack.callback(self._no_process_is_left)
        files = [f"--{name}-file={self.place}/munge.{name}" for name in ("key", "pid", "log", "seed")]
        self._daemon(stack, "munged", "--foreground", f"--socket={self.place}/munge.socket", *files)
        wait_until((self.place / "munge.socket").exists, 60)
        self._daemon(stack, "slurmctld", "-D", "-f", self.conf)
        for node in NODES:
            self._daemon(stack, "slurmd", "-D", "-N", node, "-f", self.conf)
        stack.callback(self._no_job_is_left)
        wait_until(lambda: self._states() == ["idle"] * len(NODES), 60, f"idle nodes in {self.place}")

    def _daemon(self, stack: ExitStack, *words: object) -> None:
        errors = stack.enter_context((self.place / "daemons.err").open("ab"))
        process = subprocess.Popen(
            list(map(str, words)), env=self.environ, cwd=self.place, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
        )  # fmt: skip
        stack.callback(_end, process)

    def run(self, *words: object) -> str:
        """What a command of Slurm prints; it must succeed."""
        done = subprocess.run(
            list(map(str, words)), env=self.environ, cwd=self.place, capture_output=True, text=True, timeout=60,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout.strip()

    def submit(self, *words: object, script: str) -> str:
        """Submit a batch script; the number of its job."""
        return self.run("sbatch", "--parsable", f"--output={self.place}/job.%j", *words, "--wrap", script)

    def state(self, job: str) -> str:
        """As Slurm names it: ``RUNNING``, ``COMPLETED``, ``CANCELLED``."""
        shown = self.run("scontrol", "--oneliner", "show", "job", job)
        return next(word.removeprefix("JobState=") for word in shown.split() if word.startswith("JobState="))

    def output(self, job: str) -> str:
        """What a batch script printed by now."""
        with contextlib.suppress(FileNotFoundError):
            return (self.place / f"job.{job}").read_text()
        return ""

    def cancel_all(self) -> None:
        """Cancel all jobs, and wait until none is left."""
        self.run("scancel", f"--user={getpass.getuser()}")
        wait_until(lambda: not self.run("squeue", "--noheader"), _END_WITHIN_S, "all jobs of Slurm to end")

    def _states(self) -> list[str]:
        done = subprocess.run(
            ["sinfo", "--noheader", "--Node", "--format=%t"], env=self.environ, capture_output=True, text=True
        )
        return done.stdout.split()

    def _no_job_is_left(self) -> None:
        with contextlib.suppress(AssertionError):  # what does not end is killed with its node
            self.cancel_all()

    def _no_process_is_left(self) -> None:
        """The supervisors of steps are no children of this process."""
        with contextlib.suppress(AssertionError):
            wait_until(lambda: not self._processes(), 60)
        for pid in self._processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _processes(self) -> list[int]:
        mine, found = f"SLURM_CONF={self.conf}".encode(), []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    if mine in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found


@contextmanager
def slurm_cluster(place: Path) -> Iterator[SlurmCluster]:
    """A cluster whose nodes are idle. ``place``: a short path, as names of sockets have at most 107 bytes."""
    with ExitStack() as stack:
        cluster = SlurmCluster(place)
        cluster.start(stack)
        yield cluster


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(_END_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
