"""Each fourth step the state is written to disk and waited for."""

import os
import tempfile
from pathlib import Path

import torch
from timers import steps, timed
from torch import nn

model = nn.Sequential(nn.Linear(512, 768), nn.ReLU(), nn.Linear(768, 512))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

with tempfile.TemporaryDirectory() as place:
    for step in steps():
        with timed("compute"):
            rows = torch.randn(128, 512)
            loss = nn.functional.mse_loss(model(rows), rows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if step % 4 == 0:
            with timed("checkpoint_io"), (Path(place) / "state.pt").open("wb") as file:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())
