"""The shape of Hugging Face's Trainer: a bar on standard error, dicts on standard output."""
import sys
import time

steps = 30
for step in range(1, steps + 1):
    time.sleep(0.02)
    bar = "\u2588" * (step // 3)
    sys.stderr.write(f"\r{100 * step // steps:3d}%|{bar:10s}| {step}/{steps} [00:{step // 10:02d}<00:0{3 - step // 10}, 10.02it/s]")
    sys.stderr.flush()
    if step % 10 == 0:
        print({"loss": round(3 - step / 20, 4), "grad_norm": 1.2, "learning_rate": 5e-05, "epoch": step / 30})
print({"train_runtime": 0.6, "train_samples_per_second": 400.1, "train_loss": 2.2, "epoch": 1.0})
