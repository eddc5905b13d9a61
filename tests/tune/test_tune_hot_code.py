"""What is in the training step and what is not: loops, branches, functions, methods, Lightning, Trainer, other files."""

from __future__ import annotations

from pathlib import Path

import pytest

from tune.programs import codes, loop
from unidle.tune.check import check_paths
from unidle.tune.settings import TuneSettings

EVERY = [
    "total += loss.item()",
    "if True:\n    total += loss.item()",
    "with torch.no_grad():\n    total += loss.item()",
    "if use_amp:\n    total += loss.item()",
    "if step % 100 == 0:\n    pass\nelse:\n    total += loss.item()",
    "try:\n    total += loss.item()\nfinally:\n    pass",
    "bar.set_postfix(loss=loss.item())",
    "losses.append(float(loss))",
    "if step % 2 != 0:\n    total += loss.item()",
    "if is_close(loss, args.limit):\n    total += loss.item()",
]
SELDOM = [
    "if step % 100 == 0:\n    total += loss.item()",
    "if (step + 1) % args.log_every == 0 and rank == 0:\n    total += loss.item()",
    "if not step % 100:\n    total += loss.item()",
    "if step % 100:\n    continue\ntotal += loss.item()",
    "if divides(self.step, self.save_and_sample_every):\n    total += loss.item()",
    "if step == 0:\n    total += loss.item()",
    "if step == len(train_loader) - 1:\n    total += loss.item()",
    "if step in (0, 10, 100):\n    total += loss.item()",
    "if args.debug:\n    total += loss.item()",
    "if should_log:\n    total += loss.item()",
    "if time.time() - last > 10:\n    total += loss.item()",
    "if step % 100 == 0 or step == last_step:\n    total += loss.item()",
    "try:\n    pass\nexcept ValueError:\n    total += loss.item()",
    "if step > 1000:\n    total += loss.item()\n    break",
    "def report():\n    return loss.item()",
]


@pytest.mark.parametrize("body", EVERY)
def test_what_runs_in_each_step_is_found(body: str) -> None:
    assert "UDL201" in codes(loop(body))


@pytest.mark.parametrize("body", SELDOM)
def test_what_runs_in_few_steps_is_not(body: str) -> None:
    assert codes(loop(body)) == set()


def test_once_per_epoch_is_no_finding() -> None:
    assert (
        codes(loop(before="total = 0", body="total += loss.detach()", after="print(total.item())")) == set()
    )


def test_a_script_without_an_accelerator_has_nothing_to_wait_for() -> None:
    on_cpu = loop("total += loss.item()").replace("torch.device('cuda')", "torch.device('cpu')")
    assert codes(on_cpu) == set()


def test_values_of_the_host_are_no_finding() -> None:
    assert codes(loop("n += torch.randint(3, (1,)).item()\nm = numpy_array.mean().item()")) == set()


def test_a_step_function_is_hot_where_a_loop_calls_it() -> None:
    program = """
    import torch as t
    def step(model, batch, optimizer):
        loss = model(batch.cuda()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
    def main(model, optimizer, loader):
        {}
    """
    assert codes(program.format("for batch in loader:\n            step(model, batch, optimizer)")) == {
        "UDL201"
    }
    assert codes(program.format("step(model, next(iter(loader)), optimizer)")) == set()


def test_what_a_step_calls_is_hot_and_what_it_seldom_calls_is_not() -> None:
    helper = "def record(loss):\n    history.append(loss.item())\n"
    assert codes(loop("record(loss)", before=helper)) == {"UDL201"}
    assert codes(loop("if step % 50 == 0:\n    record(loss)", before=helper)) == set()


def test_methods_of_a_trainer_class_are_followed() -> None:
    program = """
    import torch
    class Runner:
        def __init__(self, model, device):
            self.model = model.to(device)
            self.optimizer = torch.optim.Adam(self.model.parameters())
        def _run_batch(self, source, targets):
            self.optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(self.model(source), targets)
            loss.backward()
            self.optimizer.step()
            {}
        def _run_epoch(self, epoch):
            for source, targets in self.train_data:
                self._run_batch(source.to('cuda'), targets.to('cuda'))
        def train(self):
            for epoch in range(10):
                self._run_epoch(epoch)
                torch.save(self.model.state_dict(), 'last.pt')
    """
    assert codes(program.format("torch.cuda.empty_cache()")) == {"UDL205"}
    assert codes(program.format("pass")) == set()


@pytest.mark.parametrize(
    "head", ["import lightning as L", "import pytorch_lightning as L", "import lightning.pytorch as L"]
)
def test_steps_of_lightning_modules(head: str) -> None:
    program = f"""
    {head}
    class Net(L.LightningModule):
        def training_step(self, batch, batch_idx):
            loss = self.model(batch).mean()
            self.log('loss', loss{{}})
            return loss
        def validation_step(self, batch, batch_idx):
            return self.model(batch).mean().item()
        def on_train_epoch_end(self):
            print(self.total.item())
    """
    assert codes(program.format(".item()")) == {"UDL201"}
    assert codes(program.format("")) == set()


def test_callbacks_of_lightning() -> None:
    program = """
    import torch
    from lightning import Callback
    class Clean(Callback):
        def {}(self, trainer, module, *rest):
            torch.cuda.empty_cache()
    """
    assert codes(program.format("on_train_batch_end")) == {"UDL205"}
    assert codes(program.format("on_train_epoch_end")) == set()


def test_steps_of_hugging_face_trainers() -> None:
    program = """
    from transformers import Trainer
    class Weighted(Trainer):
        def compute_loss(self, model, inputs, return_outputs=False):
            outputs = model(**inputs)
            {}
            return outputs.loss
        def compute_metrics(self, model, inputs):
            return model(**inputs).loss.item()
    """
    assert codes(program.format("self.history.append(outputs.loss.item())")) == {"UDL201"}
    assert codes(program.format("pass")) == set()


def test_declared_functions_are_hot(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("import torch\ndef my_update(state):\n    torch.cuda.empty_cache()\n")
    assert check_paths([str(file)], TuneSettings()).findings == ()
    found = check_paths([str(file)], TuneSettings(hot_functions=("my_update",))).findings
    assert [one.code for one in found] == ["UDL205"]


def test_hot_code_of_imported_files(tmp_path: Path) -> None:
    (tmp_path / "engine.py").write_text(
        "import torch\n"
        "def train_step(model, x, optimizer):\n    loss = model(x.cuda()).mean()\n    loss.backward()\n    optimizer.step()\n    return loss\n"
        "def note(value):\n    return value.double().mean()\n"
        "def show(loss: torch.Tensor):\n    return loss.item()\n"
    )
    (tmp_path / "train.py").write_text(
        "import torch\nfrom engine import show, train_step\n"
        "def main(model, optimizer, loader):\n    for x in loader:\n        loss = train_step(model, x, optimizer)\n        show(loss)\n"
        "        torch.cuda.empty_cache()\n"
    )
    found = {(Path(one.file).name, one.code) for one in check_paths([str(tmp_path)], TuneSettings()).findings}
    assert found == {("engine.py", "UDL201"), ("train.py", "UDL205")}


def test_gradient_accumulation_has_two_step_loops() -> None:
    program = """
    import torch
    while True:
        for micro in range(8):
            loss = model(next(batches).cuda()).mean() / 8
            loss.backward()
            {}
        optimizer.step()
        {}
    """
    assert codes(program.format("torch.cuda.empty_cache()", "pass")) == {"UDL205"}
    assert codes(program.format("pass", "torch.cuda.empty_cache()")) == {"UDL205"}


def test_a_loop_over_optimizers_is_not_the_step() -> None:
    program = """
    import torch
    for batch in train_loader:
        loss = model(batch.cuda()).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        torch.cuda.empty_cache()
    """
    assert codes(program) == {"UDL205"}


def test_accelerate_and_scaler_take_steps() -> None:
    for step in (
        "accelerator.backward(loss)",
        "scaler.scale(loss).backward()\n    scaler.step(optimizer)",
        "engine.backward(loss)",
    ):
        program = f"import torch\nfor x in train_loader:\n    loss = model(x.cuda()).mean()\n    {step}\n    torch.cuda.empty_cache()\n"
        assert codes(program) == {"UDL205"}, step
