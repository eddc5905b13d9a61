"""The job file: every field, and every way to get one wrong."""

from __future__ import annotations

import os
import pwd
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unidle.api.job_fields import spec_of
from unidle.errors import BadInput
from unidle.files.job import job_from_command, job_from_mapping, load_job, name_of_command
from unidle.jobs import JobSpec, Layout, Limits, Restart, RestartPolicy, Service, StepFlops, role_of

EVERY_FIELD = """
name: gpt-small
command: [python, train.py, --lr, "3e-4"]
workdir: code
env: {OMP_NUM_THREADS: "1"}
ranks: 4
devices_per_rank: 2
device: gpu
queue: research
priority: -5
user: ada
layout: {tp: 2, dp: 2}
checkpoint: {path: ckpt}
progress: {pattern: 'step=(?P<step>\\d+)'}
restart: {max: 3, backoff_s: 0.5, on: [signal, SIGKILL, 75]}
limits: {memory: 512MiB, cpus: 1.5, pids: 100}
timeout_s: 3600
queue_timeout_s: 60
grace_s: 5
price_per_device_hour: 2.5
"""


def job(tmp_path: Path, text: str) -> JobSpec:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_job(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(BadInput) as caught:
        job(tmp_path, text)
    line = str(caught.value)
    assert "\n" not in line
    assert caught.value.remedy
    return line.removeprefix(str(tmp_path) + "/")


def refused_field(tmp_path: Path, field: str) -> str:
    """The error of a second line, without its place."""
    line = refused(tmp_path, f"command: [a]\n{field}\n")
    assert line.startswith("job.yaml:2: ")
    return line.removeprefix("job.yaml:2: ")


def test_every_field_arrives(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    assert job(tmp_path, EVERY_FIELD) == JobSpec(
        command=("python", "train.py", "--lr", "3e-4"),
        name="gpt-small",
        workdir=str(tmp_path / "code"),
        env={"OMP_NUM_THREADS": "1"},
        ranks=4,
        devices_per_rank=2,
        device="gpu",
        queue="research",
        priority=-5,
        user="ada",
        layout=Layout(2, 2, 1),
        checkpoint_path=str(tmp_path / "code" / "ckpt"),
        progress_pattern=r"step=(?P<step>\d+)",
        restart=Restart(3, 0.5, ("signal", "SIGKILL", 75), insists=True),
        limits=Limits(512 << 20, 1.5, 100),
        timeout_s=3600.0,
        queue_timeout_s=60.0,
        grace_s=5.0,
        price_per_device_hour=2.5,
    )


def test_only_the_command_is_required(tmp_path: Path) -> None:
    expected = JobSpec(
        command=("python", "train.py"),
        name="train",
        workdir=str(tmp_path),
        user=pwd.getpwuid(os.getuid()).pw_name,
        rendezvous="none",
    )
    assert job(tmp_path, "command: [python, train.py]") == expected


def test_json_and_standard_input_are_read(tmp_path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from unidle.files.job import load_job\n"
        "job = load_job('-'); print(job.command, job.workdir)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, *map(os.path.abspath, sys.path)],
        input='{"command": ["true"]}',
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert ran.stdout == f"('true',) {tmp_path}\n"


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["python", "-u", "src/My Train_2.py", "other.py"], "my-train_2"),
        (["/usr/bin/env"], "env"),
        (["./run.SH"], "run.sh"),
        (["___"], "job"),
        (["/"], "job"),
        (["é"], "job"),
        (["x" * 100], "x" * 63),
        ([".py"], "job"),
    ],
)
def test_the_name_comes_from_the_command(command: list[str], name: str) -> None:
    assert name_of_command(command) == name


def test_a_command_line_makes_a_job(tmp_path: Path) -> None:
    spec = job_from_command(
        ["python", "train.py", "--lr", "3e-4"], base_dir=tmp_path, ranks=4, name=None, restart={"max": 2}
    )
    assert (spec.ranks, spec.name, spec.restart.max, spec.workdir) == (4, "train", 2, str(tmp_path))


def test_errors_of_a_command_line_name_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"^command line: ranks: must be a whole number from 1 to 100,000"):
        job_from_command(["a"], base_dir=tmp_path, ranks=0)
    with pytest.raises(BadInput, match=r"^command line: command: must have at least 1 item"):
        job_from_command([], base_dir=tmp_path)


@pytest.mark.parametrize("argument", ["a\0b", "\udcff"])
def test_text_that_no_process_or_log_can_carry_is_refused(tmp_path: Path, argument: str) -> None:
    with pytest.raises(BadInput, match=r"command\[1\]") as caught:
        job_from_command(["a", argument], base_dir=tmp_path)
    assert str(caught.value).isprintable()
    with pytest.raises(BadInput, match="env"):
        job_from_mapping({"command": ["a"], "env": {argument: "x"}}, "test", tmp_path)


@pytest.mark.parametrize(
    ("field", "closest"),
    [
        ("rank: 3", "ranks"),
        ("restart: {backof_s: 3}", "backoff_s"),
        ("backoff_s: 3", "restart.backoff_s"),
        ("pattern: x", "progress.pattern"),
        ("layout: {tpp: 3}", "tp"),
        ("Env: {}", "env"),
        ("devices: 3", "device"),
        ('"": 3', "dp"),
    ],
)
def test_an_unknown_field_names_the_closest(tmp_path: Path, field: str, closest: str) -> None:
    line = refused_field(tmp_path, field)
    assert "unknown field; the closest known field is " in line
    if field != '"": 3':
        assert line.endswith(f" is {closest}")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[a]", "a job file must be a mapping"),
        ("just text", "a job file must be a mapping"),
        ("ranks: 4", "job.yaml: command: the field is missing; add it, for instance command: "),
        (
            "command: python train.py",
            'must be a list (got \'python train.py\'); write it as a list: ["python", "train.py"]',
        ),
        ('command: "a \'b"', 'write it as a list: ["a", "\'b"]'),
        ("command: []", "command: must have at least 1 item"),
        ("command:", "command: must be a list, not empty"),
        ("command: ['']", "command[0]: the program's name is empty"),
        ("command: [a, 3e-4]", "command[1]: must be text (got 0.0003); put it in quotes: '3e-4'"),
        ("command: [a, true]", "put it in quotes: 'true'"),
        ("command: [a, [b]]", "command[1]: must be text, not a list"),
        ('command: ["a\\0b"]', "command[0]: must not hold a NUL character"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(tmp_path, text)


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        ("name: Foo Bar", "(got 'Foo Bar'); for instance foo-bar"),
        ("share: {fraction: 1.5}", "share.fraction: must be a number over 0 and under 1 (got 1.5)"),
        ("share: {fraction: 0}", "share.fraction: must be a number over 0 and under 1 (got 0)"),
        ('name: "x\\n"', "name: must be"),
        (f"name: {'x' * 64}", f"for instance {'x' * 63}"),
        ("name: -x-", "for instance x"),
        ("name: 3", "name: must be 1 to 63 characters"),
        ("queue: A", "for instance a"),
        ("user: a b", "user: must be 1 to 128 characters without blanks"),
        ('user: "a\\eb"', "user: must be"),
        ("ranks: -1", "ranks: must be a whole number from 1 to 100,000 or a mapping of fields (got -1)"),
        ("ranks: 0", "(got 0)"),
        ("ranks: 1.5", "(got 1.5)"),
        ("ranks: '4'", "(got '4')"),
        ("ranks: true", "(got True)"),
        ("ranks: 1000000000000", "(got 1000000000000)"),
        ("ranks: [1]", "not a list"),
        ("ranks:", "not empty"),
        ("devices_per_rank: -1", "devices_per_rank: must be a whole number from 0 to 1,024"),
        ("devices_per_rank: 0\ndevice: gpu", "devices_per_rank: is 0, and device requires devices"),
        (
            "devices_per_rank: 0\nmodels: {include: [H100]}",
            "devices_per_rank: is 0, and models requires devices",
        ),
        ("device: tpu", "device: must be one of any, cpu, gpu (got 'tpu')"),
        ("priority: 2000000000", "priority: must be"),
        ("timeout_s: 0", "timeout_s: must be a number over 0"),
        ("timeout_s: .nan", "timeout_s: must be a finite number"),
        ("queue_timeout_s: -1", "queue_timeout_s: must be"),
        ("grace_s: -.inf", "grace_s: must be a finite number"),
        ("price_per_device_hour: -1", "price_per_device_hour: must be"),
        ("restart: 3", "restart: must be a mapping of fields (got 3)"),
        ("restart: {max: -1}", "restart.max: must be a whole number from 0 to 1,000 (got -1)"),
        ("restart: {backoff_s: x}", "restart.backoff_s: must be a number from 0 to 86,400"),
        ("restart: {on: any}", "restart.on: must be a list (got 'any')"),
        ("restart: {on: []}", "restart.on: must have at least 1 item"),
        ("restart: {on: [signal, sometimes]}", "restart.on[1]: must be any, signal, exit, lost"),
        ("restart: {on: [SIGFOO]}", "restart.on[0]"),
        ("restart: {on: [0]}", "restart.on[0]"),
        ("restart: {on: [256]}", "restart.on[0]"),
        ("ranks: {min: 4, max: 2}", "ranks.min: is above ranks.max = 2 (got 4); swap them"),
        ("ranks: {min: 4}", "ranks.max: the field is missing"),
        ("roles: {a: x}", "roles.a: must be ranks such as 0-2,5 (got 'x')"),
        ("restart: {policies: [{event: fail}]}", "restart.policies[0].action: the field is missing"),
        ("restart: {policies: [{event: fails, action: abort}]}", "restart.policies[0].event"),
        (
            "restart: {policies: [{event: fail, action: restart}]}",
            "restart.policies[0].max: the number of restarts is missing",
        ),
        (
            "restart: {policies: [{event: evict, action: ignore}]}",
            "restart.policies[0].action: its devices are gone",
        ),
        (
            "restart: {policies: [{event: timeout, action: ignore}]}",
            "restart.policies[0].event: never happens without timeout_s",
        ),
        (
            "restart: {policies: [{event: fail, action: ignore, role: x}]}",
            "restart.policies[0].role: is no role of this job",
        ),
        ("limits: {memory: 12}", "limits.memory: must be bytes, or an amount such as 200M, 512MiB or 2GB"),
        ("limits: {memory: 12Gb}", "(got '12Gb')"),
        ("limits: {memory: 12B}", "limits.memory: must be from 1 MiB to 1 PiB (got '12B')"),
        ("limits: {memory: 99999TiB}", "limits.memory: must be from 1 MiB"),
        ("limits: {cpus: 0}", "limits.cpus: must be"),
        ("limits: {pids: 0}", "limits.pids: must be"),
        ("layout: {tp: 2}", "layout: tp 2 x dp 1 x pp 1 is 2, but ranks is 1; set ranks to 2"),
        ("layout: {tp: 0}", "layout.tp: must be"),
        ("checkpoint: {}", 'checkpoint.path: the field is missing; add it, for instance path: "checkpoints"'),
        ("checkpoint: ckpt", "checkpoint: must be a mapping of fields (got 'ckpt')"),
        ("checkpoint: {path: ''}", "checkpoint.path: must be a path"),
        ("checkpoint: {path: ~/x}", "~ is not expanded"),
        ("checkpoint: {path: ../../../../../../../../etc}", "if this is intended, write /etc"),
        ("checkpoint: {path: a/../../x}", "the path leads outside"),
        ("workdir: ..", "workdir: the path leads outside"),
        ("workdir: nowhere", "workdir: there is no such directory"),
        ("workdir: job.yaml", "workdir: is not a directory"),
        ("progress: {pattern: (}", "progress.pattern: not a regular expression"),
        ("progress: {pattern: ''}", "progress.pattern: must be"),
        (f"progress: {{pattern: {'x' * 1001}}}", "progress.pattern: must be text of 1 to 1,000 characters"),
        ("progress: {pattern: 'a{99999999999}'}", "not a regular expression"),
        ("env: [A=1]", "env: must be a mapping of names to values, not a list"),
        ("env: {A: 1}", "env.A: must be text (got 1); put it in quotes: '1'"),
        ("env: {A: }", "env.A: must be text, not empty; put it in quotes"),
        ("env: {1A: x}", "env.1A: the name must be letters"),
        ("env: {A-B: x}", "env.A-B: the name must be letters"),
        ('env: {"A\\n": x}', "env.A\\n: the name must be letters"),
        ("env: {RANK: '0'}", "remove it: unidle sets it for each rank"),
        ("env: {TORCHELASTIC_RUN_ID: x}", "remove it: unidle sets it for each rank"),
        ("env: {UNIDLE_X: x}", "remove it: unidle sets it for each rank"),
    ],
)
def test_a_wrong_field_is_refused(tmp_path: Path, field: str, problem: str) -> None:
    assert problem in refused_field(tmp_path, field)


def test_the_first_wrong_field_is_reported(tmp_path: Path) -> None:
    assert refused(tmp_path, "command: [a]\nrestart: {max: -1}\nranks: -1\nfoo: 1").startswith(
        "job.yaml:2: restart.max"
    )


def test_names_that_only_resemble_a_reserved_one_are_fine(tmp_path: Path) -> None:
    assert job(tmp_path, "command: [a]\nenv: {RANKS: '', MY_RANK: x, _: y}").env == {
        "RANKS": "",
        "MY_RANK": "x",
        "_": "y",
    }


@pytest.mark.parametrize(
    ("amount", "size_bytes"),
    [
        ("1048576", 1 << 20),
        ("1MiB", 1 << 20),
        ("1.5 GiB", 3 << 29),
        ("2GB", 2 * 10**9),
        ("0.3GB", 300_000_000),
        ("200M", 200_000_000),
        ("4g", 4 * 10**9),
        ("512mib", 1 << 29),
        ("1Ti", 1 << 40),
    ],
)
def test_memory_takes_units(tmp_path: Path, amount: str, size_bytes: int) -> None:
    assert job(tmp_path, f"command: [a]\nlimits: {{memory: {amount}}}").limits.memory_bytes == size_bytes


@pytest.mark.parametrize(
    ("fields", "rendezvous"),
    [
        ("", "none"),
        ("ranks: 2", "torchrun"),
        ("ranks: {min: 1, max: 2}", "torchrun"),
        ("layout: {tp: 1}", "torchrun"),
        ("rendezvous: torchrun", "torchrun"),
        ("ranks: 4\nrendezvous: none", "none"),
    ],
)
def test_one_rank_without_a_layout_has_no_rendezvous_unless_asked(
    tmp_path: Path, fields: str, rendezvous: str
) -> None:
    assert job(tmp_path, f"command: [a]\n{fields}").rendezvous == rendezvous


def test_absolute_paths_may_lead_anywhere(tmp_path: Path) -> None:
    spec = job(tmp_path, "command: [a]\nworkdir: /\ncheckpoint: {path: /tmp/../etc}")
    assert (spec.workdir, spec.checkpoint_path) == ("/", "/etc")


def test_the_checkpoint_path_starts_from_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    spec = job(tmp_path, "checkpoint: {path: ./x/../c}\nworkdir: code\ncommand: [a]")
    assert spec.checkpoint_path == str(tmp_path / "code" / "c")


def test_an_error_never_repeats_a_long_value(tmp_path: Path) -> None:
    assert len(refused_field(tmp_path, f"device: {'x' * 10_000}")) < 400
    assert len(refused_field(tmp_path, f"{'x' * 100}: 1")) < 400


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"share": {"profile": "1g.10gb"}}, "share.profile", "1g.10gb"),
        ({"share": {"fraction": 0.5, "mode": "mps"}}, "share.mode", "mps"),
        ({"hardware": {"vendor": "amd"}}, "hardware.vendor", "amd"),
    ],
)
def test_what_only_gpus_have_is_refused_of_cpu_devices(
    tmp_path: Path, given: dict[str, object], field: str, value: str
) -> None:
    with pytest.raises(BadInput) as caught:
        job_from_mapping({"command": ["a"], "device": "cpu", **given}, "test", tmp_path)
    assert f"{field}: is of GPUs, and device is cpu (got '{value}'); remove one of them" in str(caught.value)


@pytest.mark.parametrize(
    ("given", "per_step"),
    [
        ({"per_step": 2e15}, 2e15),
        ({"parameters": 7e9, "tokens": 1000}, 4.2e13),
        ({"parameters": 100, "tokens": 10, "layers": 2, "width": 3, "sequence": 5}, 9600.0),
        ("counted", None),
    ],
)
def test_operations_of_a_step_are_given_or_counted(
    tmp_path: Path, given: object, per_step: float | None
) -> None:
    assert job_from_mapping({"command": ["a"], "flops": given}, "test", tmp_path).flops == StepFlops(per_step)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"parameters": 7e9}, "flops.tokens: is missing; give parameters and tokens"),
        ({}, "flops.parameters: is missing"),
        (
            {"parameters": 1, "tokens": 1, "width": 3},
            "flops.layers: is missing; give layers and width and sequence",
        ),
        ({"per_step": 1, "tokens": 1}, "flops.tokens: cannot be given with per_step (got 1.0)"),
        ({"per_step": 0}, "flops.per_step"),
        ("guessed", "flops"),
    ],
)
def test_operations_that_are_half_given_are_refused(tmp_path: Path, given: object, problem: str) -> None:
    with pytest.raises(BadInput, match=re.escape(problem)):
        job_from_mapping({"command": ["a"], "flops": given}, "test", tmp_path)


def test_an_elastic_job_has_whole_tensor_groups_at_any_size(tmp_path: Path) -> None:
    spec = job_from_mapping(
        {"command": ["x"], "ranks": {"min": 3, "max": 8}, "layout": {"tp": 2, "dp": 4}}, "a test", tmp_path
    )
    assert (spec.ranks, spec.sizes) == (8, (8, 6, 4))
    assert all(spec.at_size(n).layout == Layout(2, n // 2, 1) for n in spec.sizes)
    assert spec.at_size(4).at_size(8) == spec


def test_roles_and_policies_come_as_they_are_written(tmp_path: Path) -> None:
    spec = job_from_mapping(
        {
            "command": ["x"], "ranks": 4, "roles": {"trainer": "0-1,3", "logger": "2"},
            "restart": {"max": 2, "policies": [{"event": "fail", "role": "logger", "action": "ignore"}, {"event": "fail", "action": "requeue"}]},
        },
        "a test", tmp_path,
    )  # fmt: skip
    assert [role_of(spec.roles, rank) for rank in range(5)] == [
        "trainer",
        "trainer",
        "logger",
        "trainer",
        "default",
    ]
    assert spec.restart.policies == (
        RestartPolicy("fail", "ignore", role="logger"),
        RestartPolicy("fail", "requeue"),
    )
    assert spec.ignored_ranks == {2}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("ranks: {min: 2, max: 4}\nlayout: {dp: 3}", "layout: tp 1 x dp 3 x pp 1 is 3, but ranks is 4"),
        (
            "ranks: {min: 1, max: 2}\nlayout: {tp: 2}\nroles: {a: 0-2}",
            "roles.a: the gang has ranks 0 to 1 (got '0-2')",
        ),
        ("ranks: 4\nroles: {a: 0-2, b: '1'}", "roles.b: rank 1 has the role a already"),
        ("ranks: 4\nroles: {a: 2-1}", "roles.a: runs backwards"),
    ],
)
def test_fields_that_do_not_fit_each_other_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    assert problem in refused(tmp_path, f"command: [a]\n{text}\n")


@pytest.mark.parametrize(
    "given",
    [
        {"share": {"profile": "1g.10gb"}},
        {"share": {"fraction": 0.5, "mode": "mps"}},
        {"hardware": {"vendor": "amd"}},
    ],
)
def test_who_names_what_only_gpus_have_gets_no_cpu_device(tmp_path: Path, given: dict[str, object]) -> None:
    assert job_from_mapping({"command": ["a"], **given}, "test", tmp_path).device == "gpu"


def test_a_part_of_any_device_may_be_of_a_cpu_device(tmp_path: Path) -> None:
    assert job_from_mapping({"command": ["a"], "share": {"fraction": 0.5}}, "test", tmp_path).device == "any"


def test_a_rank_without_devices_takes_a_core_of_its_node(tmp_path: Path) -> None:
    bare = job(tmp_path, "command: [a]\ndevices_per_rank: 0\n")
    assert (bare.device, bare.devices, bare.requests.cpus) == ("cpu", 0, 1.0)
    asks = job(tmp_path, "command: [a]\ndevices_per_rank: 0\nrequests: {cpus: 0.5, memory: 2GiB}\n")
    assert (asks.requests.cpus, asks.requests.memory_bytes) == (0.5, 2**31)


def test_a_filler_may_be_stopped_at_any_moment_whatever_else_the_file_has(tmp_path: Path) -> None:
    spec = job(tmp_path, "command: [a]\nclass: filler\npreemption: medium\n")
    assert (spec.is_filler, spec.gives_way, spec.job_class) == (True, True, "filler")
    assert not job(tmp_path, "command: [a]").is_filler
    assert spec_of(["a"], {"job_class": "filler"}, "submit").is_filler


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("class: fill", "class: must be one of filler, normal (got 'fill')"),
        ("job_class: filler", "job_class: unknown field"),
        ("class: filler\npreemption: high", "class: is filler, and preemption is high"),
        ("class: filler\nmin_runtime_s: 60", "class: is filler, and min_runtime_s keeps others waiting"),
        ("class: filler\nshare: {fraction: 0.5}", "class: is filler, and share requests a part of a device"),
        ("class: filler\nranks: {min: 1, max: 2}", "class: is filler, and ranks has min and max"),
        ("class: filler\nqueue_timeout_s: 60", "class: is filler, and queue_timeout_s bounds a wait"),
        ("class: filler\ndevices_per_rank: 0", "class: is filler, and devices_per_rank is 0"),
    ],
)
def test_what_contradicts_a_filler_is_refused(tmp_path: Path, field: str, error: str) -> None:
    assert refused_field(tmp_path, field).startswith(error)


def test_a_service_has_replicas_and_says_how_it_is_ready(tmp_path: Path) -> None:
    spec = job(tmp_path, "command: [a]\nkind: service\nservice: {replicas: 3, port: 8000, ready: /health}\n")
    assert spec.service == Service(3, 8000, "/health")
    assert job(tmp_path, "command: [a]\nkind: service\n").service == Service()
    assert job(tmp_path, "command: [a]\n").service is None


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("service: {replicas: 2}", "service: the job is no service; add kind: service"),
        ("kind: server", "kind: must be one of job, service"),
        ("kind: service\nrestart: {max: 3}", "kind: is service, and restart.max bounds its restarts"),
        ("kind: service\ntimeout_s: 60", "kind: is service, and timeout_s ends it"),
        ("kind: service\nranks: {min: 1, max: 2}", "kind: is service, and ranks has min and max"),
        ("kind: service\nclass: filler", "kind: is service, and class is filler"),
    ],
)
def test_what_contradicts_a_service_is_refused(tmp_path: Path, field: str, error: str) -> None:
    assert refused_field(tmp_path, field).startswith(error)


@pytest.mark.parametrize(
    ("service", "error"),
    [
        ("{replicas: 0}", "service.replicas: must be a whole number from 1 to 1,000"),
        ("{port: 70000}", "service.port: must be a whole number from 0 to 65,535"),
        ("{ready: health}", "service.ready: must be a path such as /health"),
        ("{ready: '/a b'}", "service.ready: must be a path such as /health"),
    ],
)
def test_what_is_no_service_is_refused(tmp_path: Path, service: str, error: str) -> None:
    line = refused(tmp_path, f"command: [a]\nkind: service\nservice: {service}\n")
    assert error in line
