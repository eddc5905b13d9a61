"""Rules 1xx and 2xx: programs in which they find something, and programs in which the same calls do not matter."""

from __future__ import annotations

import pytest

from tune.programs import codes, forward, loop

DATASET = """
import torch, cv2, numpy as np, pandas as pd
from PIL import Image
from torch.utils.data import DataLoader, Dataset, TensorDataset
import torchvision.datasets as datasets
class Files(Dataset):
    def __init__(self, names): self.names = names
    def __len__(self): return len(self.names)
    def __getitem__(self, k):
        {}
"""


def dataset(body: str, after: str = "") -> str:
    """A dataset whose sample is read by these lines, and lines after it."""
    return DATASET.format(body.replace("\n", "\n        ")) + after + "\n"


FOUND = [
    ("UDL101", dataset("return cv2.imread(self.names[k])", "DataLoader(Files(n), 32, shuffle=True)")),
    ("UDL101", dataset("with open(self.names[k]) as f: return f.read()", "d = Files(n)\ntrain_loader = DataLoader(d, batch_size=8, num_workers=0)")),
    ("UDL101", dataset("return self.load(k)\ndef load(self, k): return 1", "train_set = datasets.ImageFolder('x')\nDataLoader(train_set, 32, shuffle=True)")),
    ("UDL101", dataset("return read(self.names[k])", "").replace("class Files", "def read(p): return Image.open(p)\nclass Files") + "DataLoader(Files(1), shuffle=True, batch_size=9)"),
    ("UDL102", dataset("return np.load(self.file)[k]")),
    ("UDL102", dataset("frame = pd.read_csv('all.csv')\nreturn frame.iloc[k]")),
    ("UDL103", "import torch, numpy as np\nx = torch.tensor([np.zeros(3) for _ in range(9)])\n"),
    ("UDL103", "import torch, numpy as np\nrows = [np.ones(2), np.ones(2)]\nx = torch.FloatTensor(rows)\n"),
    ("UDL104", dataset("x = np.zeros(9)\nreturn torch.tensor(x)")),
    ("UDL107", loop(before="from torch.utils.data import DataLoader\ntrain_loader = DataLoader(d, 8, shuffle=True, num_workers=2)")),
    ("UDL108", loop("pass", before="from torch.utils.data import DataLoader").replace("    for step,", "    train_loader = DataLoader(data, batch_size=8, shuffle=True)\n    for step,")),
    ("UDL109", "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('x')\ndef collate_fn(rows):\n    return tok(rows, padding='max_length')\nimport torch\nl = torch.utils.data.DataLoader(d, 8, collate_fn=collate_fn)\n"),
    ("UDL110", loop("x, y = next(iter(other_loader))")),
    ("UDL110", "import torch\nwhile True:\n    batch = next(iter(dataloader))\n    loss = model(batch).mean()\n    loss.backward()\n"),
    ("UDL111", loop("ids = tokenizer(texts)", imports="from transformers import AutoTokenizer", before="tokenizer = AutoTokenizer.from_pretrained('x')")),
    ("UDL112", loop("picture = cv2.imread(path)", imports="import cv2")),
    ("UDL113", "from transformers import BertTokenizerFast\ntok = BertTokenizerFast.from_pretrained('x')\ndef f(row):\n    return tok(row['text'])\nd = data.map(f)\n"),
    ("UDL201", loop("losses.append(loss.cpu().item())").replace(".cpu()", "")),
    ("UDL201", loop("correct += (output.argmax(1) == y).sum().item()")),
    ("UDL202", loop("kept.append(output.detach().cpu().numpy())")),
    ("UDL202", loop("kept.extend(output.argmax(1).tolist())")),
    ("UDL202", loop("last = output.to('cpu')")),
    ("UDL203", loop("print('loss', loss)")),
    ("UDL203", loop("print(f'{epoch} {step} {loss.item():.3f}')")),
    ("UDL204", loop("torch.cuda.synchronize()")),
    ("UDL205", loop("torch.cuda.empty_cache()")),
    ("UDL206", loop("gc.collect()", imports="import gc")),
    ("UDL207", loop("torch.save({'model': model.state_dict()}, f'{step}.pt')")),
    ("UDL207", loop("model.save_pretrained('out')")),
    ("UDL207", "from transformers import TrainingArguments as TA\nTA('out', save_steps=1)\n"),
    ("UDL208", loop("if loss > 10:\n    model.zero_grad()")),
    ("UDL208", loop("if not torch.isfinite(loss).all():\n    model.zero_grad()")),
    ("UDL208", forward("if x.max() > 1:\n    x = x / 2\nreturn x")),
    ("UDL209", forward("return torch.nonzero(x)")),
    ("UDL209", forward("i = torch.where(x > 0)[0]\nreturn x")),
    ("UDL210", loop("noise = torch.randn(4, 4).to(device)")),
    ("UDL210", loop("noise = torch.zeros(8).cuda()")),
    ("UDL210", forward("return x + torch.ones(3).to(x.device)")),
    ("UDL211", loop("model.to(device)")),
    ("UDL211", loop("model = model.cuda()")),
    ("UDL212", loop("loss2 = F.mse_loss(output, goal.to(device))", before="goal = torch.zeros(4, 2)")),
    ("UDL213", loop("writer.add_histogram('w', model.weight, step)")),
    ("UDL214", "import pytorch_lightning as pl\npl.Trainer(log_every_n_steps=1)\n"),
    ("UDL215", loop("plt.savefig('a.png')", imports="import matplotlib.pyplot as plt")),
]  # fmt: skip

NOT_FOUND = [
    dataset("return cv2.imread(self.names[k])", "DataLoader(Files(n), 32, shuffle=True, num_workers=args.workers)"),
    dataset("return cv2.imread(self.names[k])", "test_loader = DataLoader(Files(n), 32)"),
    dataset("return torch.zeros(3)", "DataLoader(Files(n), 32, shuffle=True)"),
    "from torch.utils.data import DataLoader, TensorDataset\nDataLoader(TensorDataset(x, y), batch_size=32, shuffle=True)\n",
    "from torch.utils.data import DataLoader\nDataLoader(data, batch_size=32, shuffle=True, **options)\n",
    dataset("return np.load(self.names[k])"),
    dataset("path = self.root / f'{k}.npy'\nreturn np.load(path)"),
    dataset("if self.file is None:\n    self.file = np.load(self.path)\nreturn self.file[k]"),
    dataset("return np.load(self.path, mmap_mode='r')[k]"),
    "import torch\nx = torch.tensor([1.0, 2.0])\ny = torch.tensor([[1, 2], [3, 4]])\n",
    "import torch, numpy as np\nx = torch.from_numpy(np.stack([np.zeros(3)]))\n",
    dataset("return torch.tensor(self.labels[k])"),
    loop(before="from torch.utils.data import DataLoader\ntrain_loader = DataLoader(d, 8, shuffle=True, num_workers=2, persistent_workers=True)"),
    "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('x')\nids = tok(text, padding='max_length')\n",
    "sample = next(iter(train_loader))\nimport torch\n",
    loop(before="x0, y0 = next(iter(train_loader))"),
    loop("batch = next(batches)", before="batches = iter(train_loader)"),
    "from transformers import AutoTokenizer\ntok = AutoTokenizer.from_pretrained('x')\nd = data.map(lambda r: tok(r['text']), batched=True)\nd = d.map(lambda r: {'n': len(r)})\n",
    loop(after="torch.save(model.state_dict(), 'e.pt')\ntorch.cuda.empty_cache()\ntorch.cuda.synchronize()\nprint(loss.item())"),
    loop("print('step', step)\nprint(f'{output.shape} {x.size(0)}')"),
    loop("begin = time.time()\ntorch.cuda.synchronize()\nend = time.time()", imports="import time"),
    loop("for k, v in batch.items():\n    pass"),
    loop("if output.shape[0] != 8:\n    pass\nif x.dim() == 3:\n    pass\nif mask is None:\n    pass\nif len(x) > 3:\n    pass"),
    forward("if x.shape[0] > 3:\n    x = x[:3]\nif x.is_cuda:\n    x = x.half()\nif self.training:\n    x = x * 2\nreturn x"),
    forward("return torch.where(x > 0, x, 0)"),
    loop("noise = torch.randn(4, device=device)\nx = x.to(torch.float16)"),
    loop("y2 = torch.zeros(3).to(torch.int64)"),
    "import torch\nmodel = torch.nn.Linear(1, 1).cuda()\nw = torch.ones(3).cuda()\n",
    loop("if step % 500 == 0:\n    writer.add_histogram('w', model.weight, step)\n    torch.save(model.state_dict(), 'a')"),
    "from transformers import TrainingArguments\nTrainingArguments('out', logging_steps=10, save_steps=500, save_strategy='epoch')\n",
    """
    import torch
    def evaluate(model, loader):
        model.eval()
        correct = 0
        with torch.no_grad():
            for x, y in loader:
                correct += (model(x.cuda()).argmax(1) == y.cuda()).sum().item()
        return correct
    """,
]  # fmt: skip


@pytest.mark.parametrize(("code", "program"), FOUND)
def test_found(code: str, program: str) -> None:
    assert codes(program) == {code}


@pytest.mark.parametrize("program", NOT_FOUND)
def test_not_found(program: str) -> None:
    assert codes(program) == set()


PINNED = "from torch.utils.data import DataLoader\ntrain_loader = DataLoader(d, batch_size=8, shuffle=True{})"


def test_pinned_memory_and_copies_belong_together() -> None:
    both = loop(before=PINNED.format(", pin_memory=True")).replace(
        ".to(device)\n        output", ".to(device, non_blocking=True)\n        output"
    )
    assert codes(loop(before=PINNED.format(", pin_memory=True"))) == {"UDL106"}
    assert codes(
        loop(before=PINNED.format("")).replace("y.to(device)", "y.to(device, non_blocking=True)")
    ) == {"UDL105"}
    assert codes(both.replace("x.to(device)", "x.to(device, non_blocking=True)")) == set()
    assert codes(loop(before=PINNED.format(", pin_memory=args.pin"))) == set()
