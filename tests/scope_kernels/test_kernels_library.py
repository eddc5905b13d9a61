"""The library that the CUDA driver loads, in processes whose driver and CUPTI are played."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from scope_kernels.playing import build, files, log_of, program, rows
from unidle.engine.local.injection import library, variables
from unidle.errors import BadInput
from unidle.scope.injected import recorded
from unidle.scope.tiers.imported import read
from waiting import wait_until


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("cupti"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "kernels"


def test_records_arrive_while_the_program_runs_on_the_clock_of_utc(played: Path, folder: Path) -> None:
    began_ns = time.time_ns()
    with program(played, variables(str(folder)) | {"RANK": "3"}) as one:
        one.do("kernel(2000); kernel(5, 'ncclDevKernel_AllReduce'); copy(3)")
        wait_until(lambda: len(rows(folder)) == 2008, what="all records, though no buffer is full")
        assert one.process.poll() is None
        (path,) = files(folder)
        assert path.stat().st_mode & 0o777 == 0o600
        assert folder.stat().st_mode & 0o777 == 0o700
        profile = read(path)
        assert all(
            began_ns - 10**9 < row["start"] < row["end"] <= time.time_ns() + 10**6 for row in rows(folder)
        )
    told = {(call.name, call.kind): call for call in profile.calls}
    gemm = next(name for name, _ in told if "gemm" in name)
    assert gemm == "gemm", "names are as in the source"
    assert (told[gemm, "kernel"].count, told[gemm, "kernel"].ns) == (2000, 2_000_000)
    assert told["ncclDevKernel_AllReduce", "collective"].count == 5
    copies = told["Memcpy HtoD", "copy"]
    assert (copies.count, copies.n_bytes) == (3, 3 * 4096)
    assert [(process.pid, process.rank) for process in profile.processes] == [(one.pid, 3)]
    assert profile.wall_start_ns
    assert profile.quality.notes[0] == "imported from unidle's CUPTI library, not measured by unidle"


def test_what_was_flushed_outlives_a_kill(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder))) as one:
        one.do("kernel(1000)")
        wait_until(lambda: len(rows(folder)) == 1000)
        (path,), size = files(folder), files(folder)[0].stat().st_size
        one.send("kernel(10**9)")
        wait_until(lambda: path.stat().st_size > size)
        one.process.kill()
        one.process.wait()
    assert sum(call.count for call in read(path).calls) > 1000


def test_an_exit_writes_what_is_left(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder))) as one:
        one.do("kernel(777); kernel(2, ns=0)")
        assert one.end() == 0
    assert len(rows(folder)) == 777
    assert log_of(files(folder)[0]).incomplete == 2


def test_a_flush_that_hangs_does_not_keep_the_process(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder)) | {"PLAYED_HANGS": "1"}) as one:
        one.do("kernel(5)")
        assert one.end() == 0


def test_two_processes_have_a_file_each(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder))) as one, program(played, variables(str(folder))) as two:
        one.do("kernel(10)")
        two.do("kernel(20)")
        assert (one.end(), two.end()) == (0, 0)
    assert (len(rows(folder, one.pid)), len(rows(folder, two.pid))) == (10, 20)


def test_a_child_after_fork_writes_nothing_and_the_parent_goes_on(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder))) as one:
        one.do("kernel(10)")
        wait_until(lambda: len(rows(folder)) == 10)
        one.do("fork()")
        one.do("kernel(10)")
        assert one.end() == 0
    assert [row["text"] for row in rows(folder)] == ["_Z4gemmPf"] * 20
    assert {path.name.partition("-")[0] for path in files(folder)} == {str(one.pid)}


def test_a_file_that_took_the_number_of_its_descriptor_is_not_written_to(played: Path, folder: Path) -> None:
    other = folder.with_name("other")
    with program(played, variables(str(folder))) as one:
        (found,) = recorded([one.pid])
        one.do(f"os.dup2(os.open({str(other)!r}, os.O_RDWR | os.O_CREAT), {Path(found.open_path).name})")
        one.do("kernel(100)")
        assert one.end() == 0
    assert other.read_bytes() == b""


def test_files_are_bounded_and_the_newest_records_stay(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder)) | {"UNIDLE_KERNELS_MIB": "1"}) as one:
        for n in range(12):
            one.do(f"kernel(5000, '_Z{len(str(n)) + 1}k{n}v')")
        assert one.end() == 0
    kept = files(folder)
    assert len(kept) == 2
    assert sum(path.stat().st_size for path in kept) <= 1 << 20
    texts = [row["text"] for row in rows(folder)]
    assert texts[-1] == "_Z3k11v"
    assert len(texts) > 5000 and all(texts), "each file has the names of its records"


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("PLAYED_REFUSES", "cuptiActivityRegisterCallbacks", "cuptiActivityRegisterCallbacks failed: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (CUPTI error 35)"),
        ("PLAYED_REFUSES", "cuptiActivityEnable", "tracing of kernels failed: CUPTI_ERROR_INSUFFICIENT_PRIVILEGES"),
        ("PLAYED_VERSION", "150000", "CUPTI has version 150000"),
    ],
)  # fmt: skip
def test_a_cupti_that_refuses_leaves_its_reason_and_the_program_goes_on(
    played: Path, folder: Path, variable: str, value: str, reason: str
) -> None:
    with program(played, variables(str(folder)) | {variable: value}) as one:
        one.do("kernel(10)")
        assert one.end() == 0
    with pytest.raises(BadInput) as error:
        read(files(folder)[0])
    assert reason in str(error.value)


def test_without_cupti_the_reason_is_in_the_file(played: Path, folder: Path, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libcuda.so.1").symlink_to(played / "libcuda.so.1")
    with program(driver, variables(str(folder)), "--no-cupti") as one:
        assert one.end() == 0
    with pytest.raises(BadInput, match=r"no libcupti\.so was found"):
        read(files(folder)[0])


def test_a_library_next_to_the_runtime_is_found(played: Path, folder: Path, tmp_path: Path) -> None:
    runtime, cupti, driver = (
        tmp_path / name for name in ("nvidia/cuda_runtime/lib", "nvidia/cuda_cupti/lib", "driver")
    )
    for place in (runtime, cupti, driver):
        place.mkdir(parents=True)
    (runtime / "libcudart.so.12").write_bytes((played / "libcuda.so.1").read_bytes())
    (cupti / "libcupti.so.12").write_bytes((played / "libcupti.so.12").read_bytes())
    (driver / "libcuda.so.1").symlink_to(played / "libcuda.so.1")
    (driver / "sitecustomize.py").write_text(
        f"import ctypes; ctypes.CDLL({str(runtime / 'libcudart.so.12')!r})"
    )
    env = variables(str(folder)) | {"PYTHONPATH": str(driver)}
    with program(driver, env, "--no-cupti") as one:
        one.do("cupti = ctypes.CDLL('libcupti.so.12'); kernel(4)")  # loaded: by its soname
        assert one.end() == 0
    assert len(rows(folder)) == 4


@pytest.mark.parametrize("what", ["a file", "open to all", "relative", "missing parents"])
def test_a_directory_that_cannot_be_used_changes_nothing_for_the_program(
    played: Path, tmp_path: Path, what: str
) -> None:
    place = tmp_path / "place"
    if what == "a file":
        place.write_text("mine")
    elif what == "open to all":
        place.mkdir()
        place.chmod(0o777)
    value = {"relative": "place", "missing parents": str(place / "a" / "b")}.get(what, str(place))
    with program(played, variables(value)) as one:
        one.do("kernel(10)")
        assert one.end() == 0
    assert not list(tmp_path.rglob("*.kernels"))
    assert what != "a file" or place.read_text() == "mine"


def test_a_size_limit_of_the_process_does_not_end_it(played: Path, folder: Path) -> None:
    with program(played, variables(str(folder))) as one:
        one.do("import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))")
        one.do("import signal; signal.signal(signal.SIGXFSZ, signal.SIG_DFL)")
        one.do("kernel(1000)")
        assert one.end() == 0
    assert log_of(files(folder)[0]).torn == 0


def test_the_library_is_written_once_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = Path(library())
    before = path.stat()
    assert (before.st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert Path(library()).stat().st_ino == before.st_ino
    path.write_bytes(b"something else")
    assert Path(library()).read_bytes()[:4] == b"\x7fELF"
    assert [entry.name for entry in path.parent.iterdir()] == [path.name], "no draft is left"
