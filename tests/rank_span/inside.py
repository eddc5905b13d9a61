"""What is best asked inside one process that has PyTorch; run by ``test_rank_span.py``."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

from unidle.errors import BadInput
from unidle.span.rank.backward import joined, split
from unidle.span.rank.checkpoint import CheckpointKeeper
from unidle.span.rank.gradients import Sums
from unidle.span.rank.model import Layer, as_values, build, check_shared, layer_bytes, layers_of, shapes_of
from unidle.span.rank.plan import SaveSpec
from unidle.span.rank.runner import Saver
from unidle.span.rank.shards import State, read
from unidle.span.rank.tensors import Codec, bytes_of, header, shape_of, shapes_from
from unidle.span.rank.trainer import TrainedPart

TOY = Path(__file__).with_name("toy.py")


class Tangled(nn.Module):
    """The same weight on several ways to the output, one that no output depends on, and one without any input."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
        self.scale, self.shift = nn.Parameter(torch.randn(6)), nn.Parameter(torch.randn(1))
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = torch.tanh(self.a(x) * self.scale.exp()) @ self.a.weight
        return x + self.b(x).sum(-1, keepdim=True) + self.shift.square() * torch.ones(6, dtype=x.dtype)


def gradients_in_two_parts_equal_those_in_one() -> None:
    torch.manual_seed(0)
    for model in (Tangled().double(), nn.Sequential(nn.Linear(6, 6), nn.GELU(), nn.LayerNorm(6)).double()):
        weights = list(model.parameters())
        x = torch.randn(4, 6, dtype=torch.float64, requires_grad=True)
        g = torch.randn(4, 6, dtype=torch.float64)
        inputs, whole = joined([model(x)], [g], [x], weights)
        found = split([model(x)], [g], [x], weights)
        assert found is not None
        assert torch.equal(found[0][0], inputs[0])
        for one, other in zip(found[1](), whole, strict=True):
            assert (one is None) == (other is None)
            assert one is None or torch.equal(one, other)


def weights_of_the_first_part_wait_too() -> None:
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.Linear(4, 3)).double()
    layers = layers_of(model)
    x, target = torch.tensor([[1, 2], [3, 3]]), torch.zeros(2, 2, 3, dtype=torch.float64)
    found = []
    for whole in (True, False):
        part = TrainedPart(layers, 3, first=True, loss=nn.functional.mse_loss)
        part.forward(1, 0, 0, (x,), target, keep=False)
        part.again(1, 0, 0, target)
        assert part.backward(0, [None], whole) == ()
        found.append(part.weights(0))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def a_layer_that_runs_a_graph_of_its_own_is_done_in_one_pass() -> None:
    from torch.utils.checkpoint import checkpoint

    inner = nn.Linear(4, 4)
    x = torch.randn(2, 4, requires_grad=True)
    y = checkpoint(inner, x, use_reentrant=True)
    assert split([y], [torch.ones(2, 4)], [x], list(inner.parameters())) is None


def sums_do_not_depend_on_what_comes_first() -> None:
    p = nn.Parameter(torch.zeros(3, dtype=torch.float64))
    parts = [
        torch.tensor([1e16, 1.0, -0.0]),
        torch.tensor([1.0, 1e16, -0.0]),
        torch.tensor([-1e16, 3.0, -0.0]),
    ]
    found = []
    for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
        sums = Sums([{"p": p}])
        for k in order:
            sums.add(0, k, [parts[k].double()])
        found.append(bytes(bytes_of(sums.views["p"])))
    assert len(set(found)) == 1


def tensors_become_bytes_without_a_copy() -> None:
    for dtype in (torch.bfloat16, torch.float64, torch.int64, torch.bool):
        tensor = torch.zeros(3, 2, dtype=dtype)
        view = memoryview(bytes_of(tensor))
        assert view.nbytes == tensor.numel() * tensor.element_size()
        view[0] = 1
        assert tensor.reshape(-1).view(torch.uint8)[0] == 1
        assert shapes_from(header([shape_of(tensor)])) == [shape_of(tensor)]
    assert len(bytes_of(torch.zeros(0, 4))) == 0


def what_is_sent_for_less_bytes_comes_back_nearly() -> None:
    x = torch.randn(5, 40, dtype=torch.float64) * torch.tensor([[1e-6], [1.0], [1e3], [0.0], [7.0]])
    for name, bound in ((None, 0.0), ("bfloat16", 2**-8), ("int8", 1 / 127)):
        codec = Codec(name)
        sent = codec.encode(x)
        assert [shape_of(t) for t in sent] == codec.shapes(shape_of(x))
        back = codec.decode(sent, shape_of(x))
        assert back.dtype == x.dtype
        assert ((back - x).abs() <= bound * x.abs().amax(-1, keepdim=True)).all()
        assert torch.equal(
            codec.decode(codec.encode(torch.tensor([3, 9])), ((2,), torch.int64)), torch.tensor([3, 9])
        )


def a_save_waits_for_nothing_but_the_save_before() -> None:
    gate, saved, failed = threading.Event(), [], []

    def gather(value: object, tag: str = "gather") -> list[object]:
        """Of one rank; parts are told only once the gate is open."""
        assert tag != "saved" or gate.wait(60)
        return [value]

    layers = layers_of(nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2)))
    parameters = {f"{k}.{n}": p for k, layer in enumerate(layers) for n, p in layer.module.named_parameters()}
    optimizer = torch.optim.Adam(parameters.values(), lr=0.1)
    state = State(layers, parameters, optimizer, "digest")
    with tempfile.TemporaryDirectory() as place:
        keeper = CheckpointKeeper(SaveSpec(place, 1, 5), 0, "site", True, gather)
        saver = Saver(keeper, saved.append, lambda *told: failed.append(told))
        kept = []
        for step in (1, 2):
            for parameter in parameters.values():
                parameter.grad = torch.randn_like(parameter)
            optimizer.step()
            kept.append({name: t.clone() for name, t in state.tensors().items()})
            begun = threading.Thread(target=saver.save, args=(step, state))
            begun.start()
            if step == 1:
                begun.join(60)
                assert not begun.is_alive()  # though its write goes on
                assert not saved
        assert begun.is_alive()
        gate.set()
        begun.join(60)
        saver.close()
        assert [each.step for each in saved] == [1, 2]
        assert not failed
        for each, then in zip(saved, kept, strict=True):
            found, owns, _ = read(each.path, state)
            assert all(torch.equal(found[name], value) for name, value in then.items())
            assert owns[0]["settings"][0]["lr"] == 0.1


def layers_are_counted_and_named() -> None:
    model = build(f"{TOY}:build", {"blocks": 2}, "float64", 3)
    layers = layers_of(model)
    assert [layer.name for layer in layers] == ["0", "1", "2", "3"]
    assert set(shapes_of(layers)) == set(model.state_dict())
    assert sum(layer_bytes(layers)) == sum(p.numel() * 8 for p in model.parameters())
    again = build(f"{TOY}:build", {"blocks": 2}, "float64", 3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def what_cannot_be_cut_is_refused() -> None:
    tied = nn.Linear(3, 3)
    layers = layers_of(nn.Sequential(tied, nn.ReLU(), tied))
    check_shared([layers])
    for call, text in (
        (lambda: check_shared([layers[:1], layers[1:]]), "same parameter"),
        (lambda: layers_of(nn.Linear(2, 2)), "return an nn.Sequential"),
        (lambda: build(f"{TOY}:faulty", {}, "float32", 0), "no such shape"),
        (lambda: build(f"{TOY}:nothing", {}, "float32", 0), "no such function"),
        (lambda: build("/nowhere.py:build", {}, "float32", 0), "names no file"),
        (lambda: build(f"{TOY}:loss", {"output": 1, "target": 2}, "float32", 0), "fails"),
        (lambda: as_values({"x": 1}, "3"), "gives dict"),
    ):
        assert text in _refused(call)


def a_layer_that_changes_its_input_is_named_where_that_is_needed_again() -> None:
    layers = [Layer(0, "0", nn.ReLU(inplace=True)), Layer(1, "1", nn.Linear(2, 2))]
    part = TrainedPart(layers, 0, first=False, loss=None)
    assert "layer 0: changes its input in place" in _refused(
        lambda: part.forward(1, 0, 0, (torch.ones(1, 2),), None, keep=False)
    )


def _refused(call: Callable[[], object]) -> str:
    try:
        call()
    except BadInput as error:
        return str(error)
    raise AssertionError("was not refused")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory():
        for name, case in list(globals().items()):
            if (
                getattr(case, "__module__", "") == "__main__"
                and isinstance(case, type(_refused))
                and name[0] != "_"
            ):
                case()
