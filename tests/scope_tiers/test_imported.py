"""Tier T3: files of other profilers, real ones where this machine can make them, else by their documented form."""

from __future__ import annotations

import gzip
import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.scope.model import Frame, Process, Profile, Quality, Sample, Thread
from unidle.scope.tiers.foreign import builder
from unidle.scope.tiers.imported import merge, read

BASE_NS = 1_790_857_026_000_000_000
TRAINING = """
import sys, torch
from torch.profiler import profile, record_function
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
batch, optimizer = torch.randn(32, 64), torch.optim.SGD(model.parameters(), lr=0.1)
def step():
    with record_function("forward_part"):
        loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
step()
with profile(with_stack=True) as recorded:
    for _ in range(4):
        step()
        recorded.step()
recorded.export_chrome_trace(sys.argv[1])
calls = {}
for e in recorded.events():
    count, micros = calls.get(e.name, (0, 0))
    calls[e.name] = (count + 1, micros + e.cpu_time_total)
import json, os
json.dump({"pid": os.getpid(), "calls": calls}, open(sys.argv[2], "w"))
"""


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A trace of a real training loop, and what torch itself counted."""
    folder = tmp_path_factory.mktemp("kineto")
    trace, truth = folder / "any.name", folder / "truth.json"
    environ = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = subprocess.run(
        [sys.executable, "-c", TRAINING, str(trace), str(truth)],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stderr[-2000:]
    return trace, json.loads(truth.read_text())


def names(profile: Profile, sample: Sample) -> list[str]:
    return [frame.function for frame in profile.stack(sample.stack)]


def put(folder: Path, text: str | bytes, name: str = "file.bin") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def call(
    cat: str, name: str, ts: float, dur: float, pid: int = 500, tid: int = 500, **args: Any
) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args}


def cuda_trace() -> dict[str, Any]:
    """One step with a kernel, a copy and a collective, as Kineto writes them with CUDA."""
    events = [
        {"ph": "M", "name": "process_name", "pid": 500, "tid": 0, "ts": 0, "args": {"name": "python"}},
        call("user_annotation", "ProfilerStep#3", 1000.0, 900.0),
        call("python_function", "train.py(10): step", 1000.0, 800.0, **{"Python id": 1}),
        call("cpu_op", "aten::mm", 1100.0, 100.0),
        call("cuda_runtime", "cudaLaunchKernel", 1150.0, 10.0, correlation=41),
        call("cuda_runtime", "cudaMemcpyAsync", 1300.0, 20.0, correlation=42),
        call("cuda_runtime", "cudaStreamSynchronize", 1400.0, 300.0),
        call("kernel", "sgemm_128x64", 1170.5, 200.25, 0, 7, device=0, stream=7, correlation=41),
        call("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 1380.0, 50.0, 0, 7, device=0, stream=7, correlation=42, bytes=4096),
        call("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 1500.0, 150.0, 0, 20, device=0, stream=20, correlation=99),
        {"ph": "s", "id": 41, "pid": 500, "tid": 500, "ts": 1150.0, "cat": "ac2g", "name": "ac2g"},
    ]  # fmt: skip
    return {
        "schemaVersion": 1,
        "traceEvents": events,
        "distributedInfo": {"rank": 3},
        "baseTimeNanoseconds": BASE_NS,
    }


def test_a_real_trace_of_torch_has_its_own_counts_and_times(traced: tuple[Path, dict[str, Any]]) -> None:
    trace, truth = traced
    profile = read(trace)
    assert profile.tier == "T3" and profile.processes[0].pid == truth["pid"]
    counted = {c.name: (c.count, c.ns) for c in profile.calls if c.kind == "operator"}
    for name in ("aten::linear", "aten::addmm", "aten::mm", "aten::relu"):
        count, micros = truth["calls"][name]
        assert counted[name][0] == count
        assert counted[name][1] == pytest.approx(micros * 1000, rel=0.01)
    assert not any(sample.tid < 0 for sample in profile.samples)
    assert any("no GPU activity" in miss for miss in profile.misses)
    assert "not measured by unidle" in profile.quality.notes[0]


def test_stacks_of_a_real_trace_run_from_python_into_operators(traced: tuple[Path, dict[str, Any]]) -> None:
    profile = read(traced[0])
    stacks = [names(profile, sample) for sample in profile.samples]
    found = next(s for s in stacks if s[-1] == "aten::addmm")
    assert found.index("step") < found.index("aten::linear") < found.index("aten::addmm")
    thread = max(profile.threads, key=lambda t: t.on_ns)
    assert thread.on_ns == sum(s.ns for s in profile.samples if s.tid == thread.tid)
    assert thread.on_ns <= thread.last_ns - thread.first_ns


def test_a_real_trace_lies_where_the_wall_clock_was(traced: tuple[Path, dict[str, Any]]) -> None:
    profile = read(traced[0])
    made_ns = traced[0].stat().st_mtime_ns
    assert made_ns - 120 * 10**9 < profile.wall_start_ns < made_ns
    assert 0 < profile.seconds < 120


def test_a_compressed_trace_is_the_same(traced: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    squeezed = put(tmp_path, gzip.compress(traced[0].read_bytes()), "trace.log")
    assert read(squeezed) == read(traced[0])


def test_a_profile_survives_its_json(traced: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    profile = read(traced[0])
    assert read(put(tmp_path, json.dumps(profile.to_json()))) == profile


def test_what_a_device_did_has_the_stack_of_its_launch(tmp_path: Path) -> None:
    profile = read(put(tmp_path, json.dumps(cuda_trace())))
    device = {tuple(names(profile, s)): s.ns for s in profile.samples if s.tid < 0}
    assert device == {
        ("ProfilerStep", "step", "aten::mm", "cudaLaunchKernel", "sgemm_128x64"): 200_250,
        ("ProfilerStep", "step", "cudaMemcpyAsync", "Memcpy DtoH (Device -> Pinned)"): 50_000,
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL",): 150_000,
    }
    assert {f.function for f in profile.frames if f.kind == "device"} == {stack[-1] for stack in device}
    threads = {t.name: t.on_ns for t in profile.threads if t.tid < 0}
    assert threads == {"cuda:0 stream 7": 250_250, "cuda:0 stream 20": 150_000}
    assert profile.processes == (Process(500, "python", rank=3),)
    counted = [c for c in profile.calls if c.tid < 0 and not c.kind.startswith("device_")]
    assert {c.kind: (c.count, c.ns, c.n_bytes) for c in counted} == {
        "kernel": (1, 200_250, 0), "copy": (1, 50_000, 4096), "collective": (1, 150_000, 0),
    }  # fmt: skip
    assert {c.kind for c in profile.calls if c.tid == 500} == {"operator", "launch", "copy", "sync"}


def test_spans_stand_at_their_time_of_day(tmp_path: Path) -> None:
    profile = read(put(tmp_path, json.dumps(cuda_trace())))
    kernel = next(s for s in profile.spans if s.kind == "kernel")
    assert (kernel.start_ns, kernel.end_ns) == (BASE_NS + 1_170_500, BASE_NS + 1_370_750)
    assert {s.kind for s in profile.spans} == {"kernel", "copy", "collective", "sync", "step"}
    assert profile.wall_start_ns == BASE_NS + 1_000_000


def test_the_longest_spans_are_kept_and_the_others_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("unidle.scope.tiers.foreign.timeline.SPANS", 10)
    events = [call("kernel", f"k{n}", 10.0 * n, n % 7, 0, 7, device=0, stream=7) for n in range(1, 100)]
    profile = read(put(tmp_path, json.dumps({"traceEvents": events})))
    assert sorted(s.end_ns - s.start_ns for s in profile.spans) == [6000] * 10
    assert profile.quality.spans_dropped == 89
    assert sum(s.ns for s in profile.samples) == sum(n % 7 for n in range(1, 100)) * 1000
    assert builder.SPANS > 10


def test_calls_that_only_begin_and_end_are_paired(tmp_path: Path) -> None:
    def edge(phase: str, name: str, at: int) -> dict[str, Any]:
        return {
            "ph": phase,
            "name": name,
            "pid": 9,
            "tid": 8,
            "ts": at,
            "args": {"filename": "a.py", "line": 4},
        }

    events = [
        edge("B", "outer", 0),
        edge("B", "inner", 0),
        edge("E", "inner", 70),
        edge("E", "outer", 70),
        edge("B", "open", 80),
    ]
    profile = read(put(tmp_path, json.dumps(events)))
    took = {tuple(names(profile, s)): s.ns for s in profile.samples}
    assert took == {("outer",): 0, ("outer", "inner"): 70_000, ("open",): 0}
    assert profile.frames[0] == Frame("python", "outer", "a.py", 4)
    assert any("had not ended" in note for note in profile.quality.notes)
    assert profile.wall_start_ns == 0  # such times are since any moment


@pytest.mark.parametrize("whitespace", ["", "  \n"])
def test_a_trace_larger_than_a_piece_is_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whitespace: str
) -> None:
    monkeypatch.setattr("unidle.scope.tiers.foreign.source.Stream.read.__defaults__", (4096,), raising=False)
    events = [
        call(
            "cpu_op",
            f"aten::op{n % 5}",
            100.0 * n,
            50.0,
            note='},{"x": "]} \\" ' + "\\" * (n % 4),
            dims=[[1], [2, 3]],
        )
        for n in range(3000)
    ]
    text = json.dumps({"deviceProperties": [{"id": 0}], "traceEvents": events, "after": [{"a": 1}, {"b": 2}]})
    profile = read(put(tmp_path, text.replace("}, {", "}" + whitespace + "," + whitespace + "{")))
    assert sum(c.count for c in profile.calls) == 3000
    assert sum(s.ns for s in profile.samples) == 3000 * 50_000


def test_what_python_wrote_as_infinity_is_taken(tmp_path: Path) -> None:
    text = json.dumps(
        {"traceEvents": [call("gpu_memcpy", "Memcpy", 1, 0, 0, 7, bandwidth=float("inf"), bytes=8, device=1)]}
    )
    assert "Infinity" in text
    profile = read(put(tmp_path, text))
    assert profile.calls[0].n_bytes == 8 and profile.threads[0].name == "cuda:1 stream 7"


def test_every_cut_of_a_trace_is_one_clear_error(tmp_path: Path) -> None:
    text = json.dumps(cuda_trace())
    for end in range(1, len(text)):
        with pytest.raises(BadInput) as error:
            read(put(tmp_path, text[:end]))
        assert "\n" not in error.value.line()


def test_a_cut_of_a_compressed_trace_is_one_clear_error(tmp_path: Path) -> None:
    squeezed = gzip.compress(json.dumps(cuda_trace()).encode())
    for end in range(2, len(squeezed), 7):
        with pytest.raises(BadInput, match=r"gzip|middle|empty"):
            read(put(tmp_path, squeezed[:end]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty"),
        ("   \n", "empty"),
        ("{}", "no known form"),
        ("[]", "no calls"),
        ('{"traceEvents": []}', "no calls"),
        ('{"traceEvents": {}}', "no JSON"),
        ('{"traceEvents": [1]}', "no JSON"),
        ('{"traceEvents": [{"ph":"X","ts":"now","pid":1,"tid":1}]}', "no number"),
        ('{"traceEvents": [{"ph":"X","ts":1e300,"pid":1,"tid":1}]}', "out of range"),
        ('{"traceEvents": [{"ph":"X","ts":1,"pid":1,"tid":1}], "baseTimeNanoseconds": -4}', "no time"),
        ("[" * 100_000, "no JSON|middle"),
        ('{"traceEvents": ' + '{"a":' * 100_000, "no JSON|middle"),
        ("MOJ\x03\x01austin", "MOJO"),
        ("PERFILE2\0\0", "perf script"),
        ("import os\nprint(1)\n", "no known form"),
        ("SQLite format 3\0 but no more", "database"),
        ('{"$schema": "x", "shared": {"frames": []}, "profiles": [{"type": "sampled", "samples": [[0]], "weights": [1]}]}', "not there"),
        ('{"header": {}, "coll_perf": {"coll_exec_time_us": "long"}}', "coll_exec_time_us"),
        ("# austin: 3.7.0\n# mode: memory\n", "without -m"),
        ("# austin: 3.7.0\n# mode: wall\n\nP1;T0:1;a:b:3 what\n", "line 4"),
        ('{"form": 1, "tier": "T0"}', "no profile of unidle"),
    ],
)  # fmt: skip
def test_what_is_damaged_or_unknown_is_refused_in_one_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadInput, match=says) as error:
        read(put(tmp_path, text))
    assert "\n" not in error.value.line() and len(error.value.line()) < 500


@pytest.mark.parametrize(
    "text",
    [
        "# austin: 3.7.0\n# interval: ²\nP1;T0:01;a.py:main:3 100\n",
        "P1;T0:1;a.py:main:² 100\n",
        f"P1;T0:1;a.py:main:{'9' * 5000} 100\n",
        'process 1:"x";thread (01): t;main (a.py:1) 12\n',
        (
            '{"$schema":"x","shared":{"frames":[{"name":"f"}]},"profiles":[{"type":"sampled","name":"Thread 01",'
            '"unit":"seconds","startValue":0,"endValue":1,"samples":[[0]],"weights":[1]}]}'
        ),
    ],
)
def test_numbers_that_are_written_in_odd_ways_are_read(tmp_path: Path, text: str) -> None:
    found = read(put(tmp_path, text))
    assert sum(sample.count for sample in found.samples) > 0
    assert {thread.tid for thread in found.threads} == {1}


def test_a_file_that_is_not_there_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(BadInput, match=r"no such file|cannot be read"):
            read(path)


def test_more_events_than_the_limit_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unidle.scope.tiers.foreign.timeline.EVENTS", 5)
    with pytest.raises(BadInput, match="more than 5 events; trace fewer steps"):
        read(put(tmp_path, json.dumps(cuda_trace())))


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_change_of_bytes_gives_anything_but_a_profile_or_bad_input(
    tmp_path: Path, data: st.DataObject
) -> None:
    whole = bytearray(
        data.draw(
            st.sampled_from([json.dumps(cuda_trace()), AUSTIN, PY_SPY, PERF, SPEEDSCOPE, INSPECTOR])
        ).encode()
    )
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(whole) - 1))
        whole[at : at + data.draw(st.integers(0, 4))] = data.draw(st.binary(max_size=4))
    try:
        profile = read(put(tmp_path, bytes(whole)))
    except BadInput:
        return
    assert Profile.from_json(profile.to_json()) == profile


PY_SPY = """process 41:"python train.py";thread (77): loader;<module> (train.py:10);read (_io.so) 30
process 41:"python train.py";thread (0x2A): MainThread;<module> (train.py:10);step (train.py:5) 70
"""
AUSTIN = """# austin: 3.7.0
# interval: 10000
# mode: full
# memory: 24684084

P41;T0:42;/usr/lib/python3.11/threading.py:Thread.run:982;/srv/train.py:blocked:7 9013,1,0
P41;T0:41;/srv/train.py:<module>:10;/srv/train.py:hot:5 9500,0,0
P41;T0:41;/srv/train.py:<module>:10;/srv/train.py:hot:5 500,0,128

# duration: 1001942
"""
PERF = """# cmdline : /usr/bin/perf record -F 200 -g -p 41
#
python3.11 41/43 [001]  1658.578909:   10101010 cpu-clock:pppH:
\t          1bb1c0 object_dealloc+0x0 (/usr/lib/libpython3.11.so.1.0)
\t    7f2eaa7ba9c0 py::hot:/srv/train.py+0xb (/tmp/perf-41.map)

pt main thread 44  1658.588988: cycles:
\tffffffff81000000 do_syscall_64+0x57 ([kernel.kallsyms])
\t    7f2eaa7ba9c0 [unknown] ([unknown])

"""
SPEEDSCOPE = json.dumps({
    "$schema": "https://www.speedscope.app/file-format-schema.json",
    "shared": {"frames": [{"name": "<module>", "file": "train.py", "line": 10}, {"name": "gemm", "file": "libmkl.so", "line": 0}]},
    "profiles": [
        {"type": "sampled", "name": 'Process 41 Thread 43 "MainThread"', "unit": "milliseconds", "startValue": 0, "endValue": 30,
         "samples": [[0], [0, 1]], "weights": [10, 20]},
        {"type": "evented", "name": "loader", "unit": "seconds", "startValue": 0, "endValue": 3, "events": [
            {"type": "O", "frame": 0, "at": 0}, {"type": "O", "frame": 1, "at": 1}, {"type": "C", "frame": 1, "at": 2.5},
            {"type": "C", "frame": 0, "at": 3}]},
    ],
})  # fmt: skip


def inspector_record(rank: int, number: int, **more: Any) -> str:
    return json.dumps({
        "header": {"id": "0x9e7a479f95a66c", "rank": rank, "n_ranks": 2, "nnodes": 1},
        "metadata": {"inspector_output_format_version": "v4.0", "rec_mechanism": "nccl_profiler_interface",
                     "dump_timestamp_us": BASE_NS // 1000 + 1000 * number, "hostname": "node-7", "pid": 600 + rank},
        "coll_perf": {"coll": "AllReduce", "coll_sn": number, "coll_msg_size_bytes": 65536, "coll_exec_time_us": 110,
                      "coll_timing_source": "kernel_gpu", "coll_algobw_gbs": 19.0, "coll_busbw_gbs": 18.4, **more},
    })  # fmt: skip


INSPECTOR = inspector_record(0, 1) + "\n" + inspector_record(1, 2) + "\n"


def test_py_spys_folded_stacks_keep_process_and_thread(tmp_path: Path) -> None:
    profile = read(put(tmp_path, PY_SPY))
    assert {(s.pid, s.tid, s.count) for s in profile.samples} == {(41, 77, 30), (41, 42, 70)}
    assert profile.processes == (Process(41, "python train.py"),)
    assert {t.name for t in profile.threads} == {"loader", "MainThread"}
    assert Frame("python", "step", "train.py", 5) in profile.frames
    assert Frame("native", "read", module="_io.so") in profile.frames
    assert any("assumed" in note for note in profile.quality.notes)


def test_austins_idle_threads_are_off_the_cpu(tmp_path: Path) -> None:
    profile = read(put(tmp_path, AUSTIN))
    assert {(s.tid, s.state, s.count, s.ns) for s in profile.samples} == {
        (42, "off", 1, 9_013_000),
        (41, "on", 2, 10_000_000),
    }
    assert Frame("python", "blocked", "/srv/train.py", 7) in profile.frames
    assert profile.hz == 100


def test_perfs_text_counts_periods_of_clocks_and_rates_of_others(tmp_path: Path) -> None:
    profile = read(put(tmp_path, PERF))
    assert {(s.pid, s.tid, s.ns): names(profile, s) for s in profile.samples} == {
        (41, 43, 10_101_010): ["hot", "object_dealloc"],
        (44, 44, 5_000_000): ["[unknown]", "do_syscall_64"],
    }
    assert {f.kind for f in profile.frames} == {"python", "native", "kernel"}
    assert {t.name for t in profile.threads} == {"python3.11", "pt main thread"}


def test_speedscopes_two_kinds_of_profiles_are_read(tmp_path: Path) -> None:
    profile = read(put(tmp_path, SPEEDSCOPE))
    took = {(s.pid, s.tid, tuple(names(profile, s))): s.ns for s in profile.samples}
    assert took == {
        (41, 43, ("<module>",)): 10_000_000,
        (41, 43, ("<module>", "gemm")): 20_000_000,
        (0, 1, ("<module>",)): 1_500_000_000,
        (0, 1, ("<module>", "gemm")): 1_500_000_000,
    }


def test_nccl_inspectors_records_are_collectives_of_ranks(tmp_path: Path) -> None:
    exact = inspector_record(
        1, 3, event_trace_ts={"coll_start_ts": BASE_NS // 1000 + 7, "coll_stop_ts": BASE_NS // 1000 + 117}
    )
    profile = read(put(tmp_path, INSPECTOR + exact + "\n" + exact[:50]))
    assert {(p.pid, p.rank) for p in profile.processes} == {(600, 0), (601, 1)}
    assert {(c.pid, c.name, c.count, c.ns, c.n_bytes) for c in profile.calls} == {
        (600, "ncclAllReduce", 1, 110_000, 65536),
        (601, "ncclAllReduce", 2, 220_000, 131072),
    }
    assert (BASE_NS + 7000, BASE_NS + 117_000) in {(s.start_ns, s.end_ns) for s in profile.spans}
    assert any("2 of 3 operations have no times" in note for note in profile.quality.notes)
    assert any("still being written" in note for note in profile.quality.notes)


@pytest.fixture
def nsys(tmp_path: Path) -> Path:
    """A small database with the tables and columns of an nsys export."""
    path = tmp_path / "report"
    both = 12 << 48 | 500 << 24
    with sqlite3.connect(path) as db:
        db.executescript(f"""
            create table StringIds (id integer primary key, value text not null);
            insert into StringIds values (1, 'cudaLaunchKernel_v7000'), (2, 'void gemm<float>(int)'), (3, 'gemm'), (4, 'cudaMemcpyAsync_v3020');
            create table TARGET_INFO_SESSION_START_TIME (utcEpochNs integer, utcTime text, localTime text);
            insert into TARGET_INFO_SESSION_START_TIME values ({BASE_NS}, '', '');
            create table CUPTI_ACTIVITY_KIND_RUNTIME (start int, end int, eventClass int, globalTid int, correlationId int, nameId int, returnValue int);
            insert into CUPTI_ACTIVITY_KIND_RUNTIME values (1000, 1400, 0, {both | 501}, 7, 1, 0), (2000, 2500, 0, {both | 501}, 8, 4, 0);
            create table CUPTI_ACTIVITY_KIND_KERNEL (start int, end int, deviceId int, contextId int, streamId int, correlationId int, globalPid int, demangledName int, shortName int);
            insert into CUPTI_ACTIVITY_KIND_KERNEL values (1500, 4500, 1, 1, 13, 7, {both}, 2, 3);
            create table CUPTI_ACTIVITY_KIND_MEMCPY (start int, end int, deviceId int, contextId int, streamId int, correlationId int, globalPid int, bytes int, copyKind int);
            insert into CUPTI_ACTIVITY_KIND_MEMCPY values (5000, 5100, 1, 1, 13, 8, {both}, 1048576, 1);
        """)  # fmt: skip
    db.close()
    return path


def test_cupti_records_of_nsys_are_tied_to_their_calls(nsys: Path) -> None:
    profile = read(nsys)
    assert {(s.tid, tuple(names(profile, s))): s.ns for s in profile.samples} == {
        (501, ("cudaLaunchKernel",)): 400,
        (501, ("cudaMemcpyAsync",)): 500,
        (-1, ("cudaLaunchKernel", "void gemm<float>(int)")): 3000,
        (-1, ("cudaMemcpyAsync", "Memcpy HtoD")): 100,
    }
    assert profile.wall_start_ns == BASE_NS + 1000
    assert next(c for c in profile.calls if c.name == "Memcpy HtoD").n_bytes == 1_048_576
    assert {p.pid for p in profile.processes} == {500}


def test_a_damaged_database_is_refused(nsys: Path, tmp_path: Path) -> None:
    whole = nsys.read_bytes()
    for end in range(100, len(whole), 1000):
        with pytest.raises(BadInput):
            read(put(tmp_path, whole[:end], "cut"))
    with sqlite3.connect(tmp_path / "other") as db:
        db.execute("create table t (x int)")
    db.close()
    with pytest.raises(BadInput, match="without CUPTI activity"):
        read(tmp_path / "other")


def ours(**more: Any) -> Profile:
    """A look of our own of 2 s, on a monotonic clock, around the step of the traces above."""
    start = 5_000_000_000
    told: dict[str, Any] = {
        "frames": (Frame("python", "step", "train.py", 10),), "stacks": ((0,),),
        "samples": (Sample(500, 500, 0, "on", 198, 2_000_000_000),),
        "threads": (Thread(500, 500, "python", 2_000_000_000, 0, 0, start, start + 2_000_000_000),),
        "processes": (Process(500, "python train.py"),), "quality": Quality(samples=198),
        "wall_start_ns": BASE_NS - 1_000_000_000, **more,
    }  # fmt: skip
    return Profile("T0", start, start + 2_000_000_000, **told)


def test_a_device_stands_on_the_time_line_of_our_own_look(tmp_path: Path) -> None:
    both = merge(ours(), put(tmp_path, json.dumps(cuda_trace())))
    assert both.tier == "T0" and both.samples[0] == ours().samples[0]
    assert sum(s.ns for s in both.samples if s.tid >= 0) == 2_000_000_000
    assert {s.name: s.start_ns for s in both.spans}["sgemm_128x64"] == 6_000_000_000 + 1_170_500
    assert sum(s.ns for s in both.samples if s.tid < 0) == 400_250
    assert both.stack(both.samples[-1].stack)[-1].kind == "device"
    assert any("3 spans" in note and "not measured by unidle" in note for note in both.quality.notes)
    assert Profile.from_json(both.to_json()) == both


def test_only_what_lies_in_our_window_is_merged(tmp_path: Path) -> None:
    # The look ends 100 us after the kernel began.
    early = ours(wall_start_ns=BASE_NS + 1_270_500 - 2_000_000_000)
    both = merge(early, put(tmp_path, json.dumps(cuda_trace())))
    assert [s.name for s in both.spans] == ["sgemm_128x64"]
    assert sum(s.ns for s in both.samples if s.tid < 0) == 100_000


def test_two_files_keep_their_streams_apart(tmp_path: Path, nsys: Path) -> None:
    both = merge(merge(ours(), put(tmp_path, json.dumps(cuda_trace()))), nsys)
    streams = {t.tid: t.name for t in both.threads if t.tid < 0}
    assert streams == {-1: "cuda:0 stream 7", -2: "cuda:0 stream 20", -3: "cuda:1 stream 13"}
    assert {s.tid for s in both.samples if s.tid < 0} == set(streams)


def test_a_process_of_a_container_is_the_one_that_was_watched(tmp_path: Path) -> None:
    trace = json.loads(json.dumps(cuda_trace()).replace("500,", "17,"))
    both = merge(ours(), put(tmp_path, json.dumps(trace)))
    assert {s.pid for s in both.samples} == {500}
    assert [p.pid for p in both.processes] == [500]


@pytest.mark.parametrize(
    ("wall", "text", "says"),
    [
        (BASE_NS + 60 * 10**9, None, "60.0 s before"),
        (BASE_NS - 60 * 10**9, None, "s after"),
        (0, None, "has no start time"),
        (BASE_NS, PY_SPY, "no device"),
        (BASE_NS, json.dumps({"traceEvents": [call("kernel", "k", 5, 5, 0, 7)]}), "no clock"),
    ],
)
def test_what_cannot_be_aligned_adds_nothing_and_is_said(
    tmp_path: Path, wall: int, text: str | None, says: str
) -> None:
    profile = ours(wall_start_ns=wall)
    both = merge(profile, put(tmp_path, text or json.dumps(cuda_trace())))
    assert (both.samples, both.spans, both.threads) == (profile.samples, profile.spans, profile.threads)
    assert any(says in note for note in both.quality.notes), both.quality.notes
