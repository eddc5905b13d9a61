"""What PyTorch's own profiler counts in the same process at the same time."""

from __future__ import annotations

import json
from collections import Counter

import needs
from scope_calls.targets import counting, counts, python, started

STEPS = """
import json, gc, warnings
warnings.simplefilter("ignore")
import torch
from collections import Counter
from torch.profiler import profile, ProfilerActivity
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.LayerNorm(32), torch.nn.ReLU(), torch.nn.Linear(32, 4))
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
data, wanted = torch.randn(8, 16), torch.randint(0, 4, (8,))
def train(n):
    for _ in range(n):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data), wanted).backward()
        optimizer.step()
with profile(activities=[ProfilerActivity.CPU]):
    train(1)
gc.disable()
step()
with profile(activities=[ProfilerActivity.CPU]) as seen:
    train(13)
# The events as recorded: the tables leave out operators that call themselves.
events = Counter(e.name() for e in seen.profiler.kineto_results.events() if e.name().startswith("aten::"))
names = {}
for schema in torch._C._jit_get_all_schemas():
    names["_".join(filter(None, (schema.name, schema.overload_name)))] = schema.name
print(json.dumps([events, names]), flush=True)
step()
gc.collect(); gc.collect(0)
step()
"""


@needs.ebpf
def test_operators_backward_and_optimizer_are_counted_as_the_profiler_counts_them() -> None:
    with started(python(STEPS)) as target:
        target.line()
        with counting([target.pid], operators=True, backward=True, optimizer=True, gc=True) as calls:
            target.go()
            events, names = json.loads(target.line())
            target.line()
            taken = calls.take()
            target.step()
            after = calls.take()
    operators: Counter[str] = Counter()
    for row in taken["calls"]:
        if row[3] == "operator":
            operators[names[row[2]]] += row[4]
    assert operators == events
    assert len(operators) > 20
    assert counts(taken)["THPEngine_run_backward"] == 13
    by_kind = Counter(row[3] for row in taken["spans"])
    assert by_kind == {"backward": 13, "optimizer": 13}
    assert counts(after) == {"gc_collect_main": 2}
    assert [row[3] for row in after["spans"]] == ["gc", "gc"]


@needs.ebpf
def test_errors_of_probed_operators_reach_python_with_times_taken() -> None:
    source = """
    import torch
    torch.set_num_threads(1)
    a, b = torch.ones(3, 4), torch.ones(3, 4)
    step()
    caught = 0
    for _ in range(5):
        try:
            torch.mm(a, b)
        except RuntimeError:
            caught += 1
    torch.mm(a, b.t())
    step(caught)
    """
    with started(python(source)) as target:
        target.line()
        with counting([target.pid], operator_times=True) as calls:
            assert target.step() == "5"
            taken = calls.take()
    (row,) = [row for row in taken["calls"] if row[2] == "aten::mm"]
    assert row[4] == 6
    assert row[5] > 0


@needs.ebpf
def test_collectives_of_two_ranks_are_counted_and_the_wait_is_timed() -> None:
    source = """
    import torch, torch.distributed as dist
    torch.set_num_threads(1)
    parent = os.fork()
    rank = int(parent == 0)
    if rank:
        sys.stdin = open(os.devnull)
        out = os.dup(1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    import socket
    os.environ.update(MASTER_ADDR="127.0.0.1", GLOO_SOCKET_IFNAME="lo")
    store = dist.FileStore(sys.argv[1], 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    x = torch.ones(1000)
    dist.barrier()
    step()
    for n in range(9):
        if rank:
            import time
            time.sleep(0.005)
        dist.all_reduce(x)
    step()
    """
    import tempfile

    with tempfile.TemporaryDirectory() as folder, started([*python(source), f"{folder}/store"]) as target:
        target.line()
        with counting([target.pid], collectives=True, tcp=True) as calls:
            target.step()
            taken = calls.take()
    mine = counts(taken, target.pid)
    assert mine["c10d::ProcessGroupGloo::allreduce"] == 9
    assert mine["gloo::allreduce"] == 9
    waits = [row for row in taken["spans"] if row[0] == target.pid and row[2] == "c10d::Work::wait"]
    assert len(waits) == 9
    assert all(row[5] >= row[4] for row in waits)
    assert mine["send"] > 0 and mine["receive"] > 0
