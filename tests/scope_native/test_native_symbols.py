"""Names of functions whose file was stripped: from wherever a distribution keeps its symbols; and honest gaps elsewhere."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest

import needs
from scope_native.compiled import SPINS, build_id, compiled, run, started, stripped
from scope_native.programs import running
from unidle.scope.model import Profile
from unidle.scope.tiers import look, watch
from waiting import wait_until

pytestmark = needs.ebpf


def spun(*command: str | Path) -> Profile:
    with started(*command) as process:
        return look([process.pid], 0.6)


def native_stacks(profile: Profile) -> list[list[str]]:
    """Functions of the program's own stacks that were seen on a CPU, root first."""
    stacks = [profile.stack(s.stack) for s in profile.samples if s.state == "on" and s.count]
    return [[f.function for f in stack if f.kind == "native"] for stack in stacks]


HIDDEN = ["main", "hidden_middle", "hidden_leaf"]


def ends(profile: Profile) -> set[tuple[str, ...]]:
    """The last functions of every stack: of a program that has all its names they are `HIDDEN`."""
    return {tuple(row[-3:]) for row in native_stacks(profile)}


def test_a_stripped_program_is_told_by_module_and_offset_and_counts_as_unsymbolised(tmp_path: Path) -> None:
    program = compiled(SPINS, tmp_path / "spins")
    stripped(program).unlink()
    profile = spun(program)
    assert all(name.startswith("spins+0x") for row in ends(profile) for name in row)
    assert profile.quality.symbolised_pct < 80
    assert profile.quality.rooted_pct >= 99


@pytest.mark.parametrize("folder", [".", ".debug"])
@pytest.mark.parametrize("how", ["-Wl,--build-id", "-Wl,--build-id=none"])
def test_symbols_are_found_by_the_link_to_a_file_beside_the_program(
    tmp_path: Path, folder: str, how: str
) -> None:
    program = compiled(SPINS, tmp_path / "spins", how)
    debug = stripped(program)
    run("objcopy", f"--add-gnu-debuglink={debug}", program)
    (tmp_path / folder).mkdir(exist_ok=True)
    debug.rename(tmp_path / folder / debug.name)
    assert ends(spun(program)) == {tuple(HIDDEN)}


@pytest.mark.parametrize("how", ["-Wl,--build-id", "-Wl,--build-id=none"])
def test_symbols_of_another_build_are_not_believed(tmp_path: Path, how: str) -> None:
    program = compiled(SPINS, tmp_path / "spins", how)
    debug = stripped(program)
    run("objcopy", f"--add-gnu-debuglink={debug}", program)
    other = compiled(SPINS.replace("+ 1", "+ 2").replace("hidden", "other"), tmp_path / "other", how)
    stripped(other).replace(debug)
    assert all(name.startswith("spins+0x") for row in ends(spun(program)) for name in row)


@pytest.mark.skipif(not shutil.which("xz"), reason="needs xz (apt-get install xz-utils)")
def test_symbols_are_unpacked_from_the_program_itself(tmp_path: Path) -> None:
    program = compiled(SPINS, tmp_path / "spins")
    debug = stripped(program)
    run("xz", "--keep", debug)
    run("objcopy", f"--add-section=.gnu_debugdata={debug}.xz", program)
    debug.unlink()
    assert ends(spun(program)) == {tuple(HIDDEN)}


def test_symbols_are_found_by_build_id_in_the_root_of_the_process(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    program = compiled(SPINS, root / "spins", "-static", "-Wl,--build-id")
    build = build_id(program)
    debug = stripped(program)
    place = root / "usr/lib/debug/.build-id" / build[:2] / f"{build[2:]}.debug"
    place.parent.mkdir(parents=True)
    debug.rename(root / "elsewhere")
    # As distributions do it: a link, and one that means something else outside of that root.
    place.symlink_to("/elsewhere")
    assert ends(spun("chroot", root, "/spins")) == {tuple(HIDDEN)}


def test_a_library_that_is_replaced_while_one_runs_is_read_as_each_process_has_it(tmp_path: Path) -> None:
    library = tmp_path / "libwork.so"
    source = "long {name}(long n) {{ volatile long s = 0; for (long i = 0; i < n; i++) s += i; return s; }}\n"
    source += "long work(long n) {{ return {name}(n) + 1; }}\n"
    program = (
        f"import ctypes\nwork = ctypes.CDLL({str(library)!r}).work\nprint('ready', flush=True)\n"
        "while True:\n    work(100_000)\n"
    )

    def leaves(pid: int) -> set[str]:
        return {row[-1] for row in native_stacks(look([pid], 0.5)) if "work" in row and row[-1] != "work"}

    compiled(source.format(name="before"), library, "-shared", "-fPIC")
    with running(program) as old:
        compiled(source.format(name="after"), tmp_path / "new.so", "-shared", "-fPIC").replace(library)
        with running(program) as new:
            assert (leaves(old.pid), leaves(new.pid)) == ({"before"}, {"after"})
            library.unlink()
            assert (leaves(old.pid), leaves(new.pid)) == ({"before"}, {"after"})


def test_a_library_that_is_loaded_while_its_process_is_watched_is_named(tmp_path: Path) -> None:
    library = compiled(
        SPINS.replace("int main(void) {", "int comes_late(void) {"),
        tmp_path / "liblate.so",
        "-shared",
        "-fPIC",
    )
    source = f"""
    import ctypes
    print("ready", flush=True)
    sys.stdin.readline()
    ctypes.CDLL({str(library)!r}).comes_late()
    """
    with running(source) as process, watch([process.pid]) as watched:
        watched.run(0.2)
        watched.take()
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()

        def is_named() -> bool:
            watched.run(0.2)
            rows = native_stacks(watched.take())
            return any(row[-3:] == ["comes_late", *HIDDEN[1:]] for row in rows)

        wait_until(is_named, 60, "the library's functions")


# A module for the interpreter: its functions are known by the tables that it gives to it.
TABLES = """
struct def { const char *name; void *function; int flags; const char *text; };
struct slot { int number; void *value; };
struct spec { const char *name; int basic, item; unsigned flags; struct slot *slots; };
static long spin(long n) { volatile long s = 0; for (long i = 0; i < n; i++) s += i; return s; }
static long a(long n) { return spin(n) + 1; }
static long b(long n) { return spin(n) + 2; }
static long c(long n) { return spin(n) + 3; }
static struct def methods[] = {{"turns", a, 8, 0}, {0, 0, 0, 0}};
static struct slot slots[] = {{64, methods}, {66, b}, {0, 0}};
struct spec wheel = {"vehicle.Wheel", 32, 0, 0, slots};
struct def functions[] = {{"drive", c, 1, "Go."}, {0, 0, 0, 0}};
typedef long (*function)(long);
long run(long n) {
    return ((function)methods[0].function)(n) + ((function)slots[1].value)(n) + ((function)functions[0].function)(n);
}
"""


def test_functions_of_a_stripped_module_are_called_what_python_calls_them(tmp_path: Path) -> None:
    library = compiled(TABLES, tmp_path / "vehicle.cpython-311-x86_64-linux-gnu.so", "-shared", "-fPIC")
    stripped(library).unlink()
    source = (
        f"import ctypes\nrun = ctypes.CDLL({str(library)!r}).run\nprint('ready', flush=True)\n"
        "while True:\n    run(1_000_000)\n"
    )
    with running(source) as process:
        profile = look([process.pid], 1.0)
    callers = {row[row.index("run") + 1] for row in native_stacks(profile) if "run" in row[:-1]}
    assert callers == {"Wheel.turns", "Wheel.__repr__", "drive"}
    # What no table names is told by its place, as ever.
    assert {row[-1].split("+")[0] for row in native_stacks(profile) if "run" in row[:-2]} == {library.name}


@pytest.mark.skipif(
    platform.machine() != "x86_64", reason="needs an x86-64 processor: the code is written for it"
)
def test_generated_code_in_a_container_has_the_names_of_its_own_perf_map() -> None:
    unshare = shutil.which("unshare")
    assert unshare
    # mov rcx, rdi; dec rcx; jnz; ret. The number in the file's name is that of the inner namespace, and so is /tmp.
    source = """
    import ctypes, mmap
    code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    code.write(bytes.fromhex("4889f9 48ffc9 75fb c3"))
    start = ctypes.addressof(ctypes.c_char.from_buffer(code))
    with open(f"/tmp/perf-{os.getpid()}.map", "w") as names:
        names.write(f"{start:x} a made_at_run_time\\n")
    spin = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_long)(start)
    print("ready", os.getpid(), flush=True)
    while True:
        spin(100_000_000)
    """
    # The interpreter itself, not its environment: that may be below /tmp.
    inside = 'mount -t tmpfs none /tmp && exec "$0" "$@"'
    before = [unshare, "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", inside]
    with running(source, before=before, python=os.path.realpath(sys.executable)) as process:
        (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        profile = look([int(child)], 0.8)
    seen = Counter[str]()
    for sample in profile.samples:  # one for each stack: how often it was seen is its count
        if sample.state == "on" and (stack := profile.stack(sample.stack)):
            seen[stack[-1].function] += sample.count
    assert seen["made_at_run_time"] > 0.8 * seen.total(), seen
    assert {f.module for f in profile.frames if f.function == "made_at_run_time"} == {"[generated]"}
