"""The shape of PyTorch's tutorial on DDP: a real gang over gloo."""
import gc
import os

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    torch.distributed.init_process_group("gloo")
    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for epoch in range(5):
        print(f"[GPU{rank}] Epoch {epoch} | Batchsize: 32 | Steps: 4")
        for _ in range(4):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(torch.rand(32, 20)), torch.rand(32, 1))
            loss.backward()
            optimizer.step()
    torch.distributed.destroy_process_group()


main()
gc.collect()  # ends the threads of gloo: one that needs the GIL after the interpreter has ended aborts the process
