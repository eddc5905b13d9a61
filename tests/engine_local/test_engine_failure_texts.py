"""What the end of a program's output says about its failure: texts as programs of many kinds print them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from unidle.engine.local.ranks.supervisor.failure import read_failure

RECORDED = Path(__file__).parent / "recorded" / "failures"
HEADER = "Traceback (most recent call last):"


def read(
    err: str | bytes, out: str | bytes = "", code: int = 1, workdir: str = "/home/ada"
) -> dict[str, Any]:
    err, out = (text.encode() if isinstance(text, str) else text for text in (err, out))
    return read_failure(out, err, out + err, code, workdir)


def told(err: str | bytes, out: str | bytes = "", code: int = 1) -> tuple[str, str, str]:
    """What, where and kind."""
    found = read(err, out, code)
    return found.get("what", ""), found.get("where", ""), found.get("kind", "")


def traceback(*frames: tuple[str, int, str], raised: str, prefix: str = "") -> str:
    lines = [HEADER]
    for file, line, source in frames:
        lines += [f'  File "{file}", line {line}, in f', f"    {source}", "    ~~~~^^^^"]
    return "".join(f"{prefix}{line}\n" for line in [*lines, *raised.split("\n")])


@pytest.mark.parametrize(
    ("file", "what", "where", "kind"),
    [
        ("torchrun", "RuntimeError: size mismatch, got input (3), mat (3x4), vec (5)", "gang.py:9", "code"),
        ("torchrun-table", "ValueError: no tokenizer in models/", "rec.py:5", "code"),
        ("dataloader", "ValueError: bad sample 5", "dl.py:6", "data"),
        ("spawn", "KeyError: 'lr'", "sp.py:3", "code"),
        ("pool", "ZeroDivisionError: integer division or modulo by zero", "pool.py:3", "code"),
        ("exception-group", "TypeError: a", "eg.py:1", "code"),
    ],
)
def test_recorded_outputs_are_read(file, what, where, kind):
    assert told((RECORDED / f"{file}.txt").read_bytes()) == (what, where, kind)


def test_a_bus_error_of_a_dataloader_worker_is_shared_memory():
    what, _, kind = told((RECORDED / "dataloader-bus-error.txt").read_bytes())
    assert "shared memory" in what and kind == "memory"


def test_where_is_the_innermost_line_of_the_users_own_code():
    text = traceback(
        ("/home/ada/train.py", 9, "model(x)"),
        ("/home/ada/nets/mlp.py", 88, "return F.linear(x)"),
        ("/opt/venv/lib/python3.12/site-packages/torch/nn/functional.py", 7, "return fn(x)"),
        ("/usr/lib/python3.12/contextlib.py", 3, "yield"),
        raised="RuntimeError: mat1 and mat2 shapes cannot be multiplied",
    )
    assert told(text)[1] == "nets/mlp.py:88"
    library = traceback(("/usr/lib/python3.12/runpy.py", 5, "exec(code)"), raised="OSError: nothing")
    assert told(library)[1] == "runpy.py:5"
    elsewhere = traceback(("/data/tools/__main__.py", 5, "run()"), raised="OSError: nothing")
    assert told(elsewhere)[1] == "tools/__main__.py:5"


def test_of_a_chain_the_deliberate_last_matters_and_its_root_is_named():
    root = traceback(("/home/ada/a.py", 2, 'int("x")'), raised="ValueError: invalid literal")
    cause = "\nThe above exception was the direct cause of the following exception:\n\n"
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    raised = traceback(
        ("/home/ada/a.py", 4, 'raise RuntimeError("bad config") from e'), raised="RuntimeError: bad config"
    )
    for link in (cause, during):
        assert told(root + link + raised)[:2] == (
            "RuntimeError: bad config, from ValueError: invalid literal",
            "a.py:4",
        )


def test_an_accident_while_an_exception_was_handled_does_not_hide_it():
    root = traceback(("/home/ada/a.py", 2, "train()"), raised="ValueError: loss is nan")
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    accident = traceback(("/home/ada/a.py", 7, "log.close()"), raised="AttributeError: no log")
    assert told(root + during + accident)[:2] == ("ValueError: loss is nan", "a.py:2")


@pytest.mark.parametrize("tag", ["[rank{}]: ", "{}: ", "[1,{}]<stderr>:", "[prterun-n1-77@1,{}]<stderr>: "])
def test_tracebacks_behind_tags_of_ranks_are_told_apart_line_by_line(tag):
    one = traceback(
        ("/home/ada/t.py", 3, "step()"), raised="ValueError: seven", prefix=tag.format(1)
    ).splitlines()
    other = traceback(
        ("/home/ada/t.py", 5, "dist.all_reduce(t)"),
        raised="RuntimeError: Connection closed by peer",
        prefix=tag.format(0),
    ).splitlines()
    mixed = "\n".join(line for pair in zip(other, one, strict=True) for line in pair)
    assert told(mixed) == ("ValueError: seven", "t.py:3", "code")
    assert "symptom" not in read(mixed)


@pytest.mark.parametrize(
    "prefix",
    ["2026-01-02T03:04:05.678Z ", "[2026-01-02 03:04:05,123][train][ERROR] - ", "E0102 03:04:05.000 77 "],
)
def test_tracebacks_behind_times_are_read(prefix):
    lines = traceback(("/home/ada/t.py", 3, "step()"), raised="KeyError: 'x'").splitlines()
    stamped = [prefix.replace("05", f"{5 + k:02d}") + line for k, line in enumerate(lines)]
    assert told("\n".join(stamped))[:2] == ("KeyError: 'x'", "t.py:3")
    only_first = "ERROR:root:it failed: " + "\n".join(lines)
    assert told(only_first)[:2] == ("KeyError: 'x'", "t.py:3")


def test_a_message_of_many_lines_is_its_first_that_says_something():
    text = traceback(
        ("/home/ada/t.py", 3, "net.load(s)"),
        raised="RuntimeError: Error(s) in loading for Net:\n\tMissing key(s): a\nnote: of v2",
    )
    assert told(text)[0] == "RuntimeError: Error(s) in loading for Net: Missing key(s): a"


def test_tracebacks_as_rich_loguru_and_notebooks_draw_them():
    rich = (
        "╭──────────── Traceback (most recent call last) ────────────╮\n"
        "│ /home/ada/t.py:9 in main                                  │\n│                                                           │\n"
        "│   8 def main():                                           │\n│ ❱ 9     net(x)                                            │\n"
        "│ /opt/venv/lib/python3.12/site-packages/torch/nn.py:7 in f │\n"
        "╰───────────────────────────────────────────────────────────╯\nValueError: of a box\n"
    )
    assert told(rich)[:2] == ("ValueError: of a box", "t.py:9")
    loguru = (
        f'2026-01-02 | ERROR | __main__:<module>:9 - it failed\n{HEADER}\n\n> File "/home/ada/t.py", line 9, in <module>\n'
        "    f(0)\n    └ <function f at 0x7f>\n\nValueError: of a log\n"
    )
    assert told(loguru)[:2] == ("ValueError: of a log", "t.py:9")
    notebook = traceback(
        ("/opt/venv/lib/python3.12/site-packages/nbclient/client.py", 7, "raise error"),
        raised="nbclient.exceptions.CellExecutionError: An error occurred while executing the following cell:",
    ) + (
        "------------------\nx = 1\n1/0\n------------------\n\n\n-----------\nZeroDivisionError       Traceback (most recent call last)\n"
        "Cell In[3], line 2\n      1 x = 1\n----> 2 1/0\n\nZeroDivisionError: division by zero\n\n"
    )
    assert told(notebook)[:2] == ("ZeroDivisionError: division by zero", "cell 3:2")


@pytest.mark.parametrize(
    "text",
    [
        "\x1b[0;31mValueError\x1b[0m                                Traceback (most recent call last)\nFile \x1b[0;32m/home/ada/t.py:7\x1b[0m\n      5 y = 2\n----> 7 f(3)\n\nFile /home/ada/t.py:3, in f(x)\n----> 3     raise ValueError('lr')\n\nFile /opt/venv/lib/python3.12/site-packages/torch/nn.py:88, in g(x)\n---> 88     raise\n\nValueError: lr must be positive\n",
        "ValueError                                Traceback (most recent call last)\n/home/ada/t.py in f(x)\n      2 def f(x):\n----> 3     raise ValueError('lr')\n\nValueError: lr must be positive\n",
        '{"event": "failed", "exception": "Traceback (most recent call last):\\n  File \\"/home/ada/t.py\\", line 3, in f\\n    g()\\nValueError: lr must be positive", "pid": 7}\n',
        '{"text": "12:00 | ERROR - it failed\\nTraceback (most recent call last):\\n  File \\"/home/ada/t.py\\", line 3, in f\\n    g()\\nValueError: lr must be positive\\n", "record": {"exception": {"value": "x"}}}\n',
        "{'error': 'Traceback (most recent call last):\\n  File \"/home/ada/t.py\", line 3, in f\\n    g()\\nValueError: lr must be positive\\n'}\n",
        '{"exception": [{"exc_type": "ValueError", "exc_value": "lr must be positive", "syntax_error": null, "frames": [{"filename": "/home/ada/t.py", "lineno": 3, "name": "f"}]}], "level": "error"}\n',
    ],
    ids=["ipython", "ipython-old", "json", "json-in-text", "repr", "json-fields"],
)  # fmt: skip
def test_tracebacks_in_other_forms_are_read(text):
    assert told(text) == ("ValueError: lr must be positive", "t.py:3", "code")


def test_a_list_of_mistakes_is_its_number_and_the_first():
    raised = "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Config\nlr\n  Input should be a valid number\nsize\n  Field required"
    assert told(traceback(("/home/ada/t.py", 3, "f()"), raised=raised))[0] == (
        "pydantic_core._pydantic_core.ValidationError: 2 validation errors for Config: lr: Input should be a valid number"
    )


def test_a_launcher_that_reports_the_exit_of_its_child_does_not_hide_why():
    launcher = traceback(
        ("/opt/v/lib/python3.11/site-packages/accelerate/launch.py", 7, "raise"),
        raised="subprocess.CalledProcessError: Command '['python', 'ft.py']' returned non-zero exit status 1.",
    )
    child = traceback(("/home/ada/ft.py", 41, "main()"), raised="ValueError: no tokenizer")
    assert told(child + launcher)[:2] == ("ValueError: no tokenizer", "ft.py:41")
    engine = traceback(
        ("/home/ada/serve.py", 5, "LLM()"),
        raised="RuntimeError: Engine core initialization failed. See root cause above.",
    )
    core = traceback(
        ("/x/core.py", 6, "f()"),
        raised="ValueError: no room for the cache",
        prefix="(Core_0 pid=77) ERROR 01-01 [core.py:7] ",
    )
    assert told(core + engine)[0] == "ValueError: no room for the cache"
    table = (RECORDED / "torchrun-exit.txt").read_bytes()
    assert told(table)[0] == "worker of rank 1 exited 17"


def test_where_a_handler_raised_in_a_library_the_users_line_is_that_of_the_chain():
    handler = traceback(
        (
            "/opt/v/lib/python3.11/site-packages/torch/utils/data/_utils/signal_handling.py",
            73,
            "_error_if_any_worker_fails()",
        ),
        raised="RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed. ",
    )
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    loop = traceback(
        ("/home/ada/t.py", 9, "for b in loader:"),
        ("/opt/v/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 7, "raise RuntimeError"),
        raised="RuntimeError: DataLoader worker (pid(s) 77) exited unexpectedly",
    )
    assert told(handler + link + loop) == (
        "RuntimeError: DataLoader worker (pid 77) is killed by signal: Killed.",
        "t.py:9",
        "unknown",
    )


def test_a_syntax_error_is_where_the_parser_stopped():
    own = '  File "/home/ada/bad.py", line 3\n    def f(:\n          ^\nSyntaxError: invalid syntax\n'
    found = read(own)
    assert (found["what"], found["where"], found["sort"]) == (
        "SyntaxError: invalid syntax",
        "bad.py:3",
        "syntax",
    )
    imported = f'{HEADER}\n  File "/home/ada/t.py", line 1, in <module>\n    import bad\n{own}'
    assert read(imported)["where"] == "bad.py:3"
    evaluated = f'{HEADER}\n  File "/home/ada/t.py", line 1, in <module>\n    eval(t)\n  File "<string>", line 1\n    1+\nSyntaxError: invalid syntax\n'
    assert read(evaluated)["sort"] == "error", "the text, not the program, has the error"


@pytest.mark.parametrize(
    ("err", "code", "what", "where", "kind"),
    [
        ("terminate called after throwing an instance of 'std::runtime_error'\n  what():  layer 3\n", -6, "std::runtime_error: layer 3", "", "code"),
        ("terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc\n", -6, "std::bad_alloc", "", "memory"),
        ("libc++abi: terminating due to uncaught exception of type std::out_of_range: vector\n", -6, "std::out_of_range: vector", "", "code"),
        ("sim: src/sim.cpp:10: int main(): Assertion `c == 7' failed.\n", -6, "Assertion `c == 7' failed", "src/sim.cpp:10", "code"),
        ("free(): double free detected in tcache 2\n", -6, "free(): double free detected in tcache 2", "", "code"),
        ("*** stack smashing detected ***: terminated\n", -6, "*** stack smashing detected ***: terminated", "", "code"),
        ("double free or corruption (out)\n", -6, "double free or corruption (out)", "", "code"),
        ("panic: assignment to entry in nil map\n\ngoroutine 1 [running]:\nmain.f(...)\n\t/home/ada/m.go:5\nmain.main()\n\t/home/ada/m.go:9 +0x1d\nexit status 2\n", 2, "panic: assignment to entry in nil map", "m.go:5", "code"),
        ("thread 'main' (77) panicked at src/main.rs:4:9:\nindex out of bounds\nnote: run with `RUST_BACKTRACE=1`\n", 101, "panic: index out of bounds", "src/main.rs:4", "code"),
        ("thread 'main' panicked at 'no data', src/main.rs:4:9\n", 101, "panic: no data", "src/main.rs:4", "code"),
        ('Exception in thread "main" java.lang.RuntimeException: could not train\n\tat java.base/java.lang.Thread.run(Thread.java:1)\n\tat M.main(M.java:7)\nCaused by: java.io.IOException: no shard\n\tat M.f(M.java:3)\n', 1, "java.lang.RuntimeException: could not train, from java.io.IOException: no shard", "M.java:7", "code"),
        ("/home/ada/m.js:1\nx.y\n  ^\n\nTypeError: x is undefined\n    at g (/home/ada/m.js:1:43)\n    at node:internal/main:28:49\n\nNode.js v20\n", 1, "TypeError: x is undefined", "m.js:1", "code"),
        ("run.sh: line 3: torchrum: command not found\n", 127, "torchrum: command not found", "run.sh:3", "code"),
        ("run.sh: 3: torchrum: not found\n", 127, "torchrum: not found", "run.sh:3", "code"),
        ("run.sh: line 4: ./a.out: Permission denied\n", 126, "./a.out: Permission denied", "run.sh:4", "code"),
        ("run.sh: line 2: DATA: unbound variable\n", 1, "DATA: unbound variable", "run.sh:2", "code"),
        ("run.sh: line 2: 4711 Segmentation fault      (core dumped) ./sim --n 3\n", 139, "Segmentation fault: ./sim --n 3", "run.sh:2", "code"),
        ("run.sh: line 2: 4711 Bus error               (core dumped) ./sim\n", 135, "Bus error: ./sim", "run.sh:2", "memory"),
        ("python: can't open file '/home/ada/nope.py': [Errno 2] No such file or directory\n", 2, "python: can't open file '/home/ada/nope.py': [Errno 2] No such file or directory", "", "code"),
        ("/usr/bin/python3: No module named trainer\n", 1, "No module named trainer", "", "code"),
        ("usage: t.py [-h] --lr LR\nt.py: error: the following arguments are required: --lr\n", 2, "t.py: error: the following arguments are required: --lr", "", "code"),
        ("./sim: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory\n", 127, "./sim: error while loading shared libraries: libcudart.so.12: cannot open shared object file: No such file or directory", "", "code"),
        ('Fatal Python error: Segmentation fault\n\nThread 0x1 (most recent call first):\n  File "/home/ada/other.py", line 1 in w\n\nCurrent thread 0x2 (most recent call first):\n  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at\n  File "/home/ada/t.py", line 3 in g\n', -11, "Fatal Python error: Segmentation fault", "t.py:3", "code"),
        ("-----\nMPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD\nwith errorcode 3.\n\nNOTE: invoking it kills all\n", 3, "MPI_ABORT was invoked on rank 1 in communicator MPI_COMM_WORLD with errorcode 3.", "", "unknown"),
        ("CUDA error: uncorrectable ECC error encountered\n", 1, "CUDA error: uncorrectable ECC error encountered", "", "machine"),
        ("terminate called after throwing an instance of 'int'\n", -6, "C++ exception of type int", "", "code"),
        ("==7==ERROR: AddressSanitizer: heap-buffer-overflow on address 0x60 at pc 0x55 bp 0x7f sp 0x7f\nREAD of size 4 at 0x60 thread T0\n    #0 0x55 in memcpy /build/libsanitizer/asan/asan_x.cpp:9\n    #1 0x56 in bad /home/ada/k.c:2\n    #2 0x7f in __libc_start_main ../sysdeps/nptl/start.h:58\n\nSUMMARY: AddressSanitizer: heap-buffer-overflow /home/ada/k.c:2 in bad\n==7==ABORTING\n", 1, "AddressSanitizer: heap-buffer-overflow", "k.c:2", "code"),
        ("/home/ada/k.c:1:45: runtime error: division by zero\n", 1, "runtime error: division by zero", "k.c:1", "code"),
        ("Error in fit(x) : \n  object 'shards' not found\nCalls: main -> fit\nExecution halted\n", 1, "Error in fit(x) : object 'shards' not found", "", "code"),
        ("Error: no shard\nExecution halted\n", 1, "Error: no shard", "", "code"),
        ("ERROR: LoadError: BoundsError: attempt to access 3-element Vector\nStacktrace:\n [1] getindex\n   @ ./essentials.jl:916 [inlined]\n [2] train(x::Vector)\n   @ Main ~/train.jl:3\nin expression starting at /home/ada/train.jl:7\n", 1, "BoundsError: attempt to access 3-element Vector", "~/train.jl:3", "code"),
        ("cannot open data: No such file or directory at perl.pl line 1.\n", 2, "cannot open data: No such file or directory", "perl.pl:1", "code"),
        ("train.rb:3:in `load': shard missing (RuntimeError)\n\tfrom train.rb:7:in `<main>'\n", 1, "RuntimeError: shard missing", "train.rb:3", "code"),
        ("PHP Fatal error:  Uncaught Exception: no shard in /home/ada/t.php:3\nStack trace:\n#0 {main}\n", 255, "Exception: no shard", "t.php:3", "code"),
        ("Usage: train.py [OPTIONS] CONFIG\nTry 'train.py --help' for help.\n\nError: No such option: --epoch\n", 2, "Error: No such option: --epoch", "", "code"),
        ("Usage: train.py [OPTIONS]\nTry 'train.py --help' for help.\n╭─ Error ─────╮\n│ Missing argument 'CONFIG'.  │\n╰─────────────╯\n", 2, "Missing argument 'CONFIG'.", "", "code"),
        ("FATAL Flags parsing error:\n  Unknown command line flag 'lrr'. Did you mean: lr ?\nPass --helpshort or --helpfull to see help on flags.\n", 1, "Flags parsing error: Unknown command line flag 'lrr'. Did you mean: lr ?", "", "code"),
        ("ERROR: Could not consume arg: --lrr\nUsage: train.py <flags>\n", 2, "ERROR: Could not consume arg: --lrr", "", "code"),
        ("In 'config': Could not find 'model/huge'\n\nAvailable options in 'model':\n\tlarge\nConfig search path:\n\tprovider=main, path=file:///home/ada\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n", 1, "In 'config': Could not find 'model/huge'", "", "code"),
        ("Error executing job with overrides: []\nomegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct\n    full_key: lrr\n\nSet the environment variable HYDRA_FULL_ERROR=1 for a complete stack trace.\n", 1, "omegaconf.errors.ConfigAttributeError: Key 'lrr' is not in struct", "", "code"),
        ("2026-01-01 00:00:00.000000: F tensorflow/core/conv.cc:12] Check failed: ok() Invalid shape\n", -6, "Check failed: ok() Invalid shape", "tensorflow/core/conv.cc:12", "code"),
        ("Unhandled exception. System.InvalidOperationException: no shard\n   at Train.Load() in /home/ada/Train.cs:line 12\n   at Program.Main() in /home/ada/Program.cs:line 5\n", 134, "System.InvalidOperationException: no shard", "Train.cs:12", "code"),
        ("At line 5 of file t.f90\nFortran runtime error: Index '11' above upper bound of 10\n\nError termination. Backtrace:\n", 2, "Fortran runtime error: Index '11' above upper bound of 10", "t.f90:5", "code"),
        ("==================\nWARNING: DATA RACE\nWrite at 0x00c by goroutine 7:\n  main.main.func1()\n      /home/ada/r.go:9 +0x3c\n==================\nFound 1 data race(s)\nexit status 66\n", 66, "data race", "r.go:9", "code"),
        ("k.c:3:5: error: unknown type name 'foo'\nmake: *** [Makefile:3: k.o] Error 1\n", 2, "error: unknown type name 'foo'", "k.c:3", "code"),
        ("k.cu(7): error: identifier undefined\n", 2, "error: identifier undefined", "k.cu:7", "code"),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=77.0.\nsrun: error: node1: task 0: Out Of Memory\n", 1, "slurmstepd: error: Detected 1 oom_kill event in StepId=77.0.", "", "memory"),
        ("cannot read the config: no such section: model\n", 3, "cannot read the config: no such section: model", "", "unknown"),
    ],
)  # fmt: skip
def test_other_programs_are_read(err, code, what, where, kind):
    assert told(err, code=code) == (what, where, kind)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.10 GiB", "memory"),
        ("MemoryError", "memory"),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.28 TiB for an array", "memory"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "code"),
        ("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", "machine"),
        ("OSError: [Errno 28] No space left on device", "machine"),
        ("RuntimeError: No CUDA GPUs are available", "machine"),
        ("OSError: [Errno 5] Input/output error: '/mnt/x'", "machine"),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'train.bin'", "data"),
        ("UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff", "data"),
        ("json.decoder.JSONDecodeError: Expecting value: line 1 column 1", "data"),
        ("torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error, ncclSystemError", "network"),
        ("ValueError: ncclInvalidUsage: Duplicate GPU detected : rank 1 and rank 0", "code"),
        ("socket.gaierror: [Errno -2] Name or service not known", "network"),
        ("OSError: [Errno 98] Address already in use", "network"),
        ("KeyboardInterrupt", "unknown"),
        ("AssertionError", "code"),
        ("my.project.Diverged: loss is 1e9", "code"),
    ],
)  # fmt: skip
def test_each_error_has_its_kind(raised, kind):
    found = read(traceback(("/home/ada/t.py", 3, "f()"), raised=raised))
    assert (found["kind"], found["where"]) == (kind, "t.py:3")
    assert found["what"] == raised


@pytest.mark.parametrize(
    "raised",
    [
        "RuntimeError: [../pair.cc:561] Connection closed by peer [127.0.0.1]:13219",
        "RuntimeError: [/pair.cc:534] Connection reset by peer",
        "torch.distributed.DistNetworkError: The client socket has failed to connect to [localhost]:29500 (errno: 111 - Connection refused).",
        "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 1/2 clients joined.",
        "torch.distributed.DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error",
        "torch.distributed.elastic.multiprocessing.api.SignalException: Process 7 got signal: 15",
    ],
)
def test_what_a_lost_peer_leaves_is_a_symptom(raised):
    assert read(traceback(("/home/ada/t.py", 3, "f()"), raised=raised)).get("symptom") is True
    aborted = f"terminate called after throwing an instance of 'c10::Error'\n  what():  {raised}\n"
    assert read(aborted, code=-6).get("symptom") is True


def test_an_assertion_on_the_gpu_is_named_with_the_error():
    first = "/pytorch/Loss.cu:7: nll: block: [0,0,0], thread: [3,0,0] Assertion `t >= 0 && t < n_classes` failed.\n"
    text = first * 3 + traceback(
        ("/home/ada/t.py", 3, "loss.item()"), raised="RuntimeError: CUDA error: device-side assert triggered"
    )
    what, where, kind = told(text)
    assert (
        what
        == "RuntimeError: CUDA error: device-side assert triggered: Assertion `t >= 0 && t < n_classes` failed."
    )
    assert (where, kind) == ("t.py:3", "code")


HANDLED = traceback(("/home/ada/t.py", 2, "open(cache)"), raised="FileNotFoundError: no cache")
STEPS = "".join(f"step {k} loss {2 / (k + 1):.2f}\n" for k in range(3))


@pytest.mark.parametrize(
    ("streams", "code", "what"),
    [
        ([("err", HANDLED), ("out", STEPS)], 3, ""),
        ([("err", HANDLED), ("out", STEPS)], -9, ""),
        ([("err", HANDLED + " 10%|#  | 1/10 [00:01<00:09, 1.00it/s]\n")], -11, ""),
        ([("err", HANDLED + STEPS)], -15, "step 2 loss 0.67"),
        ([("err", HANDLED), ("out", STEPS), ("err", "loss is nan, giving up\n")], 1, "loss is nan, giving up"),
        ([("err", HANDLED + STEPS + "loss is nan, giving up\n")], 1, "loss is nan, giving up"),
        # these ended it
        ([("out", STEPS), ("err", HANDLED)], 1, "FileNotFoundError: no cache"),
        ([("out", STEPS), ("err", HANDLED)], -6, "FileNotFoundError: no cache"),
        ([("err", HANDLED), ("out", "cleaning up\n")], 3, "FileNotFoundError: no cache"),
        ([("err", HANDLED + "some workers failed\n")], 1, "FileNotFoundError: no cache"),
        ([("err", HANDLED + "Epoch 0:  12%|#2  | 12/100 [00:03<00:22, 3.97it/s]\n")], 1, "FileNotFoundError: no cache"),
        ([("err", HANDLED + "wandb: Run summary:\nwandb:  loss 0.31\nwandb:  step 100\n")], 1, "FileNotFoundError: no cache"),
    ],
)  # fmt: skip
def test_a_traceback_after_which_steps_came_is_not_why_it_failed(streams, code, what):
    out, err = ("".join(text for name, text in streams if name == one).encode() for one in ("out", "err"))
    both = "".join(text for _, text in streams).encode()
    assert read_failure(out, err, both, code).get("what", "") == what


def test_an_exception_that_the_program_went_on_after_is_not_why_it_failed():
    handled = traceback(("/home/ada/t.py", 3, "retry()"), raised="TimeoutError: slow") + "still here\n" * 100
    assert told(handled + "giving up: no shard left\n", code=3)[0] == "giving up: no shard left"
    assert told(handled, code=-11)[0] != "TimeoutError: slow"


def test_standard_output_counts_where_errors_go_there():
    text = traceback(("/home/ada/t.py", 3, "f()"), raised="ValueError: of a log")
    assert told("a warning: nothing\n", text)[0] == "ValueError: of a log"


def test_colours_and_carriage_returns_are_taken_off():
    text = traceback(
        ("/home/ada/t.py", 3, "f()"), raised="ValueError: \x1b[1;31mred\x1b[0m \x1b]8;;x\x07link"
    ).replace("\n", "\r\n")
    assert told("\r 10%|#   \r 20%|##  \r" + text)[0] == "ValueError: red link"
    assert all(line.isprintable() for line in read("\x1b[31m\x00\x07 bell\tand tab\n")["lines"])


def test_the_last_ten_lines_are_kept_and_are_short():
    out = b"".join(b"line %d\n" % k for k in range(30)) + b"y" * 100_000 + b"\n"
    lines = read("", out)["lines"]
    assert lines[:-1] == [f"line {k}" for k in range(21, 30)]
    assert len(lines) == 10 and len(lines[-1]) <= 300


def test_where_the_error_is_further_up_the_lines_shown_are_its_own():
    table = read((RECORDED / "torchrun.txt").read_bytes())["lines"]
    assert table[-1].endswith("RuntimeError: size mismatch, got input (3), mat (3x4), vec (5)")
    flood = read_failure(b"", HANDLED.encode(), (HANDLED + "working\n" * 50).encode(), 1)
    assert flood["lines"][-1] == "FileNotFoundError: no cache"  # type: ignore[index]
    panic = (
        "panic: no map\n\ngoroutine 1 [running]:\nmain.f(...)\n\t/home/ada/m.go:5\n"
        + "goroutine 7 [sleep]:\n" * 30
    )
    assert read(panic, code=2)["lines"][:2] == ["panic: no map", "goroutine 1 [running]:"]


def test_nothing_printed_says_nothing():
    assert read("", code=3) == {}


@pytest.mark.parametrize("seed", range(20))
def test_any_bytes_give_bounded_printable_texts(seed):
    draw = random.Random(seed)
    pieces = [
        HEADER.encode() + b"\n", b'  File "/a/b.py", line 3, in f\n', b"    x()\n", b"ValueError: ", b"[rank1]: ", b"  + Exception Group ",
        b"  | ", b"panic: ", b"goroutine 1 [running]:\n", b"\x1b[", b"\r", b"\n", b"\xff\xfe\x00", b"Assertion `", b"' failed.", b"x: line 3: ",
        b"terminate called after throwing an instance of 'x'\n", b"Caused by: ", b" " * 40, b"7" * 50, b"During handling of the above exception\n",
    ]  # fmt: skip
    data = b"".join(draw.choice(pieces) for _ in range(4000))
    found = read_failure(data, data[::-1], data, draw.choice([1, 2, 127, -6, -11]), "/a", (True, True))
    texts = [found.get("what", ""), found.get("where", ""), *found.get("lines", [])]  # type: ignore[misc]
    assert all(isinstance(text, str) and len(text) <= 2100 and text.isprintable() for text in texts)


def test_the_error_of_a_child_comes_before_the_exception_that_reports_its_exit():
    raised = "subprocess.CalledProcessError: Command '['cc', 'a.c']' returned non-zero exit status 1."
    text = traceback(("/home/ada/build.py", 3, "run(command, check=True)"), raised=raised)
    assert told("ccx: broken: unable to read a.c\nstopped.\n" + text)[:2] == (
        "ccx: broken: unable to read a.c (then CalledProcessError: Command '['cc', 'a.c']' returned non-zero exit status 1.)",
        "build.py:3",
    )  # fmt: skip
    assert told("building\n" + text)[0] == raised  # the child printed no error


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("2026-01-01 12:00:00,123 ERROR train.main: ValueError: bad lr", "ValueError: bad lr"),
        ("2026-01-01 12:00:00,123 ERROR ValueError: bad lr", "ValueError: bad lr"),
        ("2026-01-01T12:00:00Z CRITICAL socket.timeout: failed", "socket.timeout: failed"),
        ("2026-01-01 12:00:00 - trainer - ERROR - cannot read a.bin", "cannot read a.bin"),
        ("[2026-01-01 12:00:00,123][ERROR][trainer] - cannot read a.bin", "cannot read a.bin"),
        ("ERROR:root:cannot read a.bin", "cannot read a.bin"),
        ("E0101 12:00:00.123456 1234 train.py:33] failed to open a.bin", "failed to open a.bin"),
        ("2026-01-01 12:00:00,123 ERROR", "2026-01-01 12:00:00,123 ERROR"),
        ("tool: error: cannot read a.bin", "tool: error: cannot read a.bin"),
    ],
)
def test_a_reason_has_no_prefix_of_a_logger(line, what):
    assert told(f"{line}\n")[0] == what
