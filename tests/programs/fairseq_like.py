"""The shape of fairseq with --log-format json."""
import json
import time

for update in range(10, 410, 10):
    time.sleep(0.01)
    print("2024-05-01 10:00:00 | INFO | train_inner | "
          + json.dumps({"epoch": 1 + update // 200, "update": round(update / 200, 3), "loss": "9.1", "ppl": "550.2",
                        "num_updates": str(update), "lr": "1e-05", "gnorm": "3.2"}))
