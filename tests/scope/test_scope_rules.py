from __future__ import annotations

import json
from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.scope.model import Frame
from unidle.scope.rules import (
    CATEGORIES,
    UNKNOWN,
    RuleSet,
    StackRule,
    frame_of,
    leaf_of,
    pattern_of,
    plain_name,
)
from unidle.scope.rules_file import all_rules, load_rules, shipped

SHIPPED = RuleSet(shipped())


@pytest.mark.parametrize("rule", shipped(), ids=lambda rule: rule.name)
def test_each_rule_takes_its_example_and_no_earlier_rule_does(rule: StackRule) -> None:
    assert rule.example is not None
    assert SHIPPED.of(rule.example.stack, rule.example.state, rule.example.thread) is rule
    assert rule.category in CATEGORIES
    assert rule.says


def test_each_category_has_a_rule() -> None:
    assert {rule.category for rule in shipped()} == set(CATEGORIES)


@pytest.mark.parametrize(
    ("category", "state", "stack"),
    [
        # What other programs than the examples' look like: versions, names with parameters, static Pythons.
        ("lock", "off", ["_start [python3.11]", "spin a.py", "pthread_cond_timedwait@@GLIBC_2.3.2 [libc.so.6]", "wait futex"]),
        ("lock", "off", ["f a.py", "pybind11::gil_scoped_release::~gil_scoped_release() [libtorch_python.so]", "PyEval_RestoreThread [python3.12]", "pthread_cond_timedwait [libc.so.6]"]),
        ("collective", "off", ["f a.py", "c10d::Reducer::finalize_backward() [libtorch_cpu.so]", "std::condition_variable::wait(std::unique_lock<std::mutex>&) [libstdc++.so.6.0.30]", "pthread_cond_wait [libc.so.6]", "wait futex"]),
        ("collective", "off", ["f a.py", "PMPI_Allreduce [libmpi.so.40]", "wait poll"]),
        ("compute", "on", ["_start [python]", "f a.py", "at::_ops::mm::call(at::Tensor const&, at::Tensor const&) [libtorch_cpu.so]", "mkl_blas_avx512_sgemm_kernel_0 [libtorch_cpu.so]"]),
        ("compute", "on", ["_start [python]", "f a.py", "dgemm_kernel_SKYLAKEX [libscipy_openblas64_-32a4b2a6.so]"]),
        ("compute", "on", ["_start [python]", "f a.py", "my_kernel(float*, int) [fast.cpython-311-x86_64-linux-gnu.so]"]),
        ("compute", "on", ["_start [python]", "f a.py", "at::native::add [libtorch_cpu.so]", "__memset_avx512_unaligned_erms [libc.so.6]"]),
        ("python", "on", ["_start [python]", "f a.py"]),
        ("python", "on", ["_start [python]", "f a.py", "_PyObject_Malloc [python3.11]"]),
        ("python", "on", ["_start [python]", "f a.py", "unicode_join [libpython3.13.so.1.0]", "__memmove_avx_unaligned_erms [libc.so.6]"]),
        ("data", "on", ["_start [python]", "train a.py", "Pictures.__getitem__ my/data/pictures.py", "long_add [libpython3.11.so.1.0]"]),
        ("data", "off", ["train a.py", "urlopen /usr/lib/python3.11/urllib/request.py", "readinto /usr/lib/python3.11/socket.py", "wait recv tcp"]),
        ("data", "off", ["train a.py", "more a.py", "array_getitem [_multiarray_umath.cpython-311.so]", "wait page fault file"]),
        ("idle", "off", ["train a.py", "time_sleep [libpython3.11.so.1.0]", "clock_nanosleep [libc.so.6]", "wait sleep"]),
        ("idle", "off", ["_run_once /usr/lib/python3.11/asyncio/base_events.py", "select /usr/lib/python3.11/selectors.py", "wait epoll_wait"]),
        ("checkpoint_io", "on", ["train a.py", "Trainer.save_checkpoint a.py", "cat /venv/site-packages/torch/functional.py"]),
        ("checkpoint_io", "off", ["train a.py", "keep a.py", "os_fsync [libpython3.11.so.1.0]", "jbd2_log_wait_commit [kernel]", "wait fsync"]),
        ("copy", "on", ["train a.py", "torch::autograd::THPVariable_to(_object*, _object*, _object*) [libtorch_python.so]", "at::native::copy_ [libtorch_cpu.so]"]),
        ("device_sync", "off", ["train a.py", "cuStreamSynchronize [libcuda.so.1]", "wait ioctl"]),
        ("device_sync", "on", ["train a.py", "torch::autograd::THPVariable_item [libtorch_python.so]", "cudaStreamSynchronize [libcudart.so.12]"]),
        ("cpu_contention", "runq", ["train a.py", "__getitem__ a.py"]),
        ("other", "off", ["train a.py", "run /usr/lib/python3.11/subprocess.py", "wait read pipe"]),
        ("python", "on", ["main a.py", "_find_and_load <frozen importlib._bootstrap>", "dlopen [libc.so.6]"]),
    ],
)  # fmt: skip
def test_stacks_of_other_programs_are_understood(category: str, state: str, stack: list[str]) -> None:
    found = SHIPPED.of([frame_of(text) for text in stack], state, "training")
    assert (found.category, found.name) == (category, found.name), found.name


def test_a_worker_thread_that_waits_for_work_is_idle_and_a_trainer_that_does_waits_for_data() -> None:
    stack = [frame_of(f) for f in ("serve a.py", "get /usr/lib/python3.11/queue.py", "wait /usr/lib/python3.11/threading.py", "wait futex")]  # fmt: skip
    assert SHIPPED.of(stack, "off", "other").category == "idle"
    assert SHIPPED.of(stack, "off", "training").category == "data"


def test_training_inside_a_function_called_main_of_data_py_is_no_data() -> None:
    stack = [frame_of("main /home/me/data.py"), frame_of("at::_ops::mm::call [libtorch_cpu.so]")]
    assert SHIPPED.of(stack, "on").category == "compute"


def test_what_no_rule_takes_is_other() -> None:
    assert RuleSet([]).of([frame_of("f a.py")], "on") is UNKNOWN


@pytest.mark.parametrize(
    ("text", "frame", "matches"),
    [
        ("save torch/*.py", Frame("python", "save", "/x/torch/serialization.py"), True),
        ("save torch/*.py", Frame("python", "save", "torch/serialization.py"), True),
        ("save */torch/*.py", Frame("python", "save", "torch/serialization.py"), True),
        ("load|save */torch/*", Frame("python", "Box.save", "/x/torch/a.py"), True),
        ("load|save */torch/*", Frame("python", "saved", "/x/torch/a.py"), False),
        ("f train.py", Frame("python", "f", "/home/me/train.py"), True),
        ("f train.py", Frame("python", "f", "/home/me/pretrain.py"), False),
        ("*|!main */data.py", Frame("python", "main", "/x/data.py"), False),
        ("*|!main */data.py", Frame("python", "more", "/x/data.py"), True),
        ("f <user>", Frame("python", "f", "/home/me/a.py"), True),
        ("f <user>", Frame("python", "f", "/usr/lib/python3.12/json/a.py"), False),
        ("f <user>", Frame("python", "f", "/venv/lib/python3.12/site-packages/x/a.py"), False),
        ("f <user>", Frame("python", "f", "<string>"), False),
        ("at::mm [libtorch*]", Frame("native", "at::mm(at::Tensor const&)", module="libtorch_cpu.so"), True),
        ("at::mm [libtorch*]", Frame("native", "at::mm", module="libc10.so"), False),
        ("collect", Frame("native", "collect.constprop.0", module="python3.11"), True),
        ("wait read *", Frame("wait", "read file"), True),
        ("read *", Frame("wait", "read file"), False),
        ("vfs_* [kernel]", Frame("kernel", "vfs_read"), True),
    ],
)  # fmt: skip
def test_patterns_match_as_they_are_written(text: str, frame: Frame, matches: bool) -> None:
    rules = RuleSet([StackRule("mine", "data", "x", frame=(pattern_of(text),))])
    assert (rules.of([frame], "on").name == "mine") is matches


def test_the_leaf_is_whom_the_c_library_and_the_kernel_work_for() -> None:
    stack = [
        frame_of(f)
        for f in ("f a.py", "at::add [libtorch_cpu.so]", "malloc [libc.so.6]", "clear_page [kernel]")
    ]
    assert leaf_of(stack) == 1
    assert leaf_of([frame_of("malloc [libc.so.6]")]) == 0
    assert leaf_of([frame_of("clear_page [kernel]")]) is None
    assert plain_name(frame_of("a::(anonymous namespace)::b(int) [x.so]")) == "a::(anonymous namespace)::b"


def test_own_rules_come_first_from_a_file_and_from_the_users_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / "given.yaml"
    given.write_text("rules:\n- {name: mine, category: data, says: reads, frame: 'pull <user>'}\n")
    own = tmp_path / "unidle" / "profile-rules.yaml"
    own.parent.mkdir()
    own.write_text(json.dumps({"rules": [{"name": "own", "category": "idle", "says": "x", "frame": ["pull <user>", "rest <user>"]}]}))  # fmt: skip
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    rules = all_rules(given)
    assert [rule.name for rule in rules.rules[:2]] == ["mine", "own"]
    assert rules.of([frame_of("pull a.py")], "on").name == "mine"
    assert rules.of([frame_of("rest a.py")], "on").name == "own"
    assert rules.of([frame_of("rest a.py")], "on").source == str(own)
    for rule in shipped():
        assert (
            rule.example is None
            or rules.of(rule.example.stack, rule.example.state, rule.example.thread) == rule
        )


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("", "the file is empty"),
        ("rules: []", "rules"),
        ("rules:\n- {name: a, category: dat, says: x, frame: f}", "category"),
        ("rules:\n- {name: a, category: data, says: x, frame: f, mach: 3}", "mach"),
        ("rules:\n- {name: a, category: data, says: x, frame: ' '}", "frame"),
        ("rules:\n- {name: a, category: data, says: x, state: running, frame: f}", "state"),
        ("rules:\n- {name: a, category: data, says: x}", "takes everything"),
        ("rules:\n- {name: a, category: data, says: x, frame: f}\n- {name: a, category: data, says: x, frame: f}", "twice"),
        ("rules:\n- {name: a, category: data, says: x, frame: f, example: {stack: [f]}}", "example"),
        ("rule: 1", "rule"),
        ("[", "rules"),
    ],
)  # fmt: skip
def test_a_wrong_rules_file_gets_one_line_that_names_the_place(tmp_path: Path, text: str, wrong: str) -> None:
    path = tmp_path / "rules.yaml.txt"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_rules(path)
    line = caught.value.line()
    assert wrong in line
    assert str(path) in line
    assert "\n" not in line
    assert caught.value.exit_code == 2
