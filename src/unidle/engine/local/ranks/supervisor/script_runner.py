"""A forked Python becomes a script, as if ``python script.py`` had been executed. Standard library only."""

from __future__ import annotations

import atexit
import os
import runpy
import signal
import socket
import sys
import threading
import time
from types import ModuleType

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

LISTENS_S = 5.0


def script_of(argv: Sequence[str]) -> tuple[str, str, list[str]] | None:
    """What a command line of Python runs: ``("script", "module" or "safe module", its name, its arguments)``.

    A safe one (``-P``) imports nothing from the working directory.

    None for one with options that a warm Python cannot take on, or none that it understands.
    """
    words = list(argv[1:])
    safe = "-P" in words[:2]
    while words and words[0] in ("-u", "-P"):
        words.pop(0)
    if len(words) > 1 and words[0] == "-m":
        return "safe module" if safe else "module", words[1], words[2:]
    if words and not safe and not words[0].startswith("-"):
        return "script", words[0], words[1:]
    return None


def become(argv: list[str], env: dict[str, str]) -> None:
    """Run the script of ``argv`` in this process with environment ``env``, and end with it. Never returns."""
    found = script_of(argv)
    assert found is not None, argv
    kind, name, arguments = found
    _as_new(env)
    code = 1
    try:
        code = _run(kind, name, arguments)
    finally:
        _end(code)


def _as_new(env: dict[str, str]) -> None:
    """Undo what a supervisor did to its interpreter, and what would be the same in all that were forked."""
    os.environ.clear()
    os.environ.update(env)
    for name in [name for name in sys.modules if name == "unidle" or name.startswith("unidle.")]:
        del sys.modules[name]  # the script may have one of its own, or none
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_IGN)  # as Python itself does at its start
    rendezvous = sys.modules.get("torch.distributed.rendezvous")
    if rendezvous is not None:
        _look_often(rendezvous)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()  # else all ranks draw the same numbers


def _look_often(rendezvous: ModuleType) -> None:
    """Let ranks that come before rank 0's store find it at once.

    They come a few milliseconds before it when all fork at the same time, and torch's client, once refused,
    looks again after up to two seconds only.
    """
    store = getattr(rendezvous, "TCPStore", None)
    if store is None:
        return

    def patient(host_name: str, port: int, *rest: object, **named: object) -> object:
        if not named.get("is_master", rest[1] if len(rest) > 1 else False):
            wait_for_listener(host_name, port, LISTENS_S)
        return store(host_name, port, *rest, **named)

    rendezvous.TCPStore = patient  # type: ignore[attr-defined]


def wait_for_listener(host: str, port: int, limit_s: float) -> None:
    """Return when a process listens there, a connection fails other than by refusal, or ``limit_s`` seconds are over."""
    end_s, pause_s = time.monotonic() + limit_s, 0.002
    while time.monotonic() < end_s:
        try:
            socket.create_connection((host, port), timeout=limit_s).close()
            return
        except ConnectionRefusedError:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)
        except OSError:
            return


def _run(kind: str, name: str, arguments: list[str]) -> int:
    """Run a script or module as ``__main__``; returns the exit code that Python would give."""
    try:
        sys.argv = [name, *arguments]
        if kind != "script":
            if kind == "module":
                sys.path.insert(0, os.getcwd())
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path.insert(0, os.path.dirname(os.path.abspath(name)))
            _run_script(os.path.abspath(name))  # Python makes __file__ absolute
    except SystemExit as asked:
        return _exit_code(asked)
    except BaseException as error:
        return _show(error)
    return 0


def _run_script(name: str) -> None:
    main = ModuleType("__main__")
    main.__file__ = name
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if os.path.isdir(name) or name.endswith((".zip", ".pyz")):
        runpy.run_path(name, run_name="__main__")
        return
    with open(name, "rb") as file:
        code = compile(file.read(), name, "exec")
    exec(code, main.__dict__)  # noqa: S102 - it is the user's own script


def _exit_code(asked: SystemExit) -> int:
    if asked.code is None:
        return 0
    if isinstance(asked.code, int):
        return asked.code & 0xFF
    print(asked.code, file=sys.stderr)
    return 1


def _show(error: BaseException) -> int:
    """The traceback from the script's own frame on; returns the exit code."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
        trace = trace.tb_next
    sys.excepthook(type(error), error.with_traceback(trace), trace)
    if isinstance(error, KeyboardInterrupt):
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _flush()
        os.kill(os.getpid(), signal.SIGINT)
    return 1


def _end(code: int) -> None:
    """What an interpreter does at its end: wait for threads, call what was registered, flush."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # noqa: SLF001 - there is no public way
        atexit._run_exitfuncs()  # noqa: SLF001
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    _flush()
    os._exit(code)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
