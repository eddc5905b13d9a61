"""Follows a controller, an agent or a box, and kills it with SIGKILL before the n-th line that it has not run before.

    python at_line.py SPEC box DIR

Controllers and agents are forked from a warm process (``warm_hosts.py``), which calls :func:`traced`.

SPEC is a JSON file: ``{"role": "box", "start": 0, "line": 17, "parts": ["/unidle/box/"]}``. Only lines within functions of
files whose path has one of ``parts`` count, and only in the start of that number of the role (of the box of one job), from
0 on. With line 0 nothing is killed. Each new line is written to ``SPEC.lines``, and ``killed`` at the end where it was. Boxes that
an agent starts run under this program too. The product has no part in this.
"""

import hashlib
import json
import os
import signal
import sys
import threading

SRC = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "src")
_FUNCTION = 0x1  # CO_OPTIMIZED: code of a function, not of a module or class


class AtLine:
    """Counts lines, each once."""

    def __init__(self, line, parts, log):
        self.line, self.parts, self.log = line, parts, log
        self.seen = set()
        self.counts = {}

    def trace(self, frame, event, _argument):
        code = frame.f_code
        if event == "call":
            counts = self.counts.get(code)
            if counts is None:
                named = any(part in code.co_filename for part in self.parts)
                counts = self.counts[code] = bool(named and code.co_flags & _FUNCTION)
            return self.trace if counts else None
        if event == "line" and (key := (code.co_filename, frame.f_lineno)) not in self.seen:
            self.seen.add(key)
            os.write(self.log, f"{key[0].partition('/src/')[2]}:{key[1]}\n".encode())
            if len(self.seen) == self.line:
                os.write(self.log, b"killed\n")
                os.kill(os.getpid(), signal.SIGKILL)
        return self.trace


def number_of(spec, role, of):
    """How many starts of this role there were before this one."""
    name = hashlib.sha256(of.encode()).hexdigest()[:12]
    fd = os.open(f"{spec}.{role}.{name}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, b".")
    size = os.fstat(fd).st_size
    os.close(fd)
    return size - 1


def traced(spec, role, of):
    with open(spec) as file:
        found = json.load(file)
    number = number_of(spec, role, f"{found['name']} {of}")
    if found["role"] != role or found["start"] != number:
        return
    log = os.open(f"{spec}.lines", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o600)
    at_line = AtLine(found["line"], found["parts"], log)
    threading.settrace(at_line.trace)
    sys.settrace(at_line.trace)


def agent_boxes(spec):
    """Boxes of the agent that this process becomes run under this program."""
    from unidle.agent.boxes import Boxes

    begun = Boxes.__init__
    command = (sys.executable, "-I", "-S", "-E", os.path.abspath(__file__), spec, "box")
    Boxes.__init__ = lambda self, root: begun(self, root, command)


def main():
    spec, role, directory = sys.argv[1:]
    sys.path.append(SRC)
    from unidle.box.command import main as box

    traced(spec, role, os.path.basename(directory))
    sys.exit(box([directory]))


if __name__ == "__main__":
    main()
