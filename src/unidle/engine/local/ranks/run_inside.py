"""Runs a command as a rank would: with its environment, in its directory. Its source is run as it is, also in a pod.

    python3 -c SOURCE JOB ATTEMPT RANK COMMAND [ARGUMENT...]

Standard library only, and no other file. Exit code: that of the command; 125 where the rank does not run here, 126 and 127 as a
shell has them.
"""

import os
import sys

NO_RANK = 125


def start_of(pid):
    # type: (str) -> int
    with open(f"/proc/{pid}/stat", "rb") as file:
        data = file.read()
    fields = data[data.rfind(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        raise OSError("it has ended")
    return int(fields[19])


def found(entries):
    # type: (set[bytes]) -> str | None
    """The first process of the rank: the one that started first."""
    best = None
    for pid in os.listdir("/proc"):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                if entries <= set(file.read().split(b"\0")):
                    this = (start_of(pid), int(pid))
                    best = this if best is None else min(best, this)
        except OSError:
            continue
    return None if best is None else str(best[1])


def main(words):
    # type: (list[str]) -> int
    job, attempt, rank, command = words[0], words[1], words[2], words[3:]
    pid = found(
        {
            b"UNIDLE_JOB=" + os.fsencode(job),
            b"UNIDLE_ATTEMPT=" + os.fsencode(attempt),
            b"UNIDLE_RANK=" + os.fsencode(rank),
        }
    )
    if pid is None:
        sys.stderr.write(
            f"unidle: rank {rank} of {job} does not run here, or its processes belong to another user\n"
        )
        return NO_RANK
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0")]
        os.chdir(f"/proc/{pid}/cwd")
        os.chdir(os.getcwd())
    except OSError as error:
        sys.stderr.write(f"unidle: rank {rank} has just ended: {error.strerror}\n")
        return NO_RANK
    environment = {
        name: value
        for name, separator, value in pairs
        if separator and not name.startswith(b"UNIDLE_RANK_FD")
    }
    if "TERM" in os.environ:
        environment[b"TERM"] = os.fsencode(os.environ["TERM"])
    try:
        os.execvpe(command[0], command, environment)  # noqa: S606 - it is what was asked for
    except OSError as error:
        sys.stderr.write(f"unidle: {command[0]}: {error.strerror}\n")
        return 127 if isinstance(error, FileNotFoundError) else 126


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
