"""Rank 1 has data of another shape, in a function of its own."""
import os
import time

import numpy as np


def project(batch):
    return np.dot(batch, np.ones(5 if os.environ["RANK"] == "1" else 4))


for step in range(1, 50):
    time.sleep(0.01)
    if step == 5:
        project(np.ones((3, 4)))
    print(f"step {step} loss {1 / step:.3f}")
