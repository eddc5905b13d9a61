"""The shape of Keras: a bar for each epoch that is drawn over itself."""
import sys
import time

for epoch in range(1, 4):
    print(f"Epoch {epoch}/3")
    for batch in range(1, 13):
        time.sleep(0.01)
        bar = "=" * (2 * batch - 1) + ">" + "." * (24 - 2 * batch)
        sys.stdout.write(f"\r{batch:2d}/12 [{bar}] - ETA: 0s - loss: {1 / (epoch * batch):.4f}")
        sys.stdout.flush()
    print()
