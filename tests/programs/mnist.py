"""The shape of pytorch/examples, mnist: batches of an epoch, then a test."""
import math
import time

for epoch in (1, 2):
    for batch in range(0, 60, 2):
        time.sleep(0.005)
        done = f"{batch * 64}/{60 * 64} ({100 * batch / 60:.0f}%)"
        print(f"Train Epoch: {epoch} [{done}]\tLoss: {math.exp(-batch / 40) / epoch:.6f}")
    print(f"\nTest set: Average loss: {0.1 / epoch:.4f}, Accuracy: 9{epoch}80/10000 (9{epoch}%)\n")
