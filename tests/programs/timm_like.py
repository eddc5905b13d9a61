"""The shape of timm's train.py, with validation after each epoch."""
import time

for epoch in range(2):
    for batch in range(0, 1251, 50):
        time.sleep(0.005)
        print(f"Train: {epoch} [{batch:>4d}/1251 ({100 * batch / 1250:>3.0f}%)]  Loss: {6.9 - batch / 1000:#.3g} (6.92)  "
              f"Time: 0.412s, 621.36/s  (0.480s, 533.10/s)  LR: 1.000e-05  Data: 0.010 (0.035)")
    for batch in range(0, 100, 50):
        print(f"Test: [{batch:>4d}/97]  Time: 0.2 (0.2)  Loss:  6.8 (6.8)  Acc@1:  1.2 ( 1.2)  Acc@5:  4.1 ( 4.1)")
