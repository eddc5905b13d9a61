"""Writes a span file of so many sites and GPUs in all: ``python plan-large.py SITES GPUS BATCH > large.json``.

Sites are in a full mesh, the next one 20 ms away; the last has a hundredth of an even share of the devices.
"""

import json
import sys

sites, gpus, batch = map(int, sys.argv[1:4])
each = gpus // sites
print(
    json.dumps(
        {
            "model": {"layers": 96, "hidden": 12288, "sequence": 4096},
            "batch": batch,
            "device_tflops": 400,
            "memory_cap_bytes": "80GB",
            "local_gbps": 400,
            "sites": [
                {
                    "name": f"s{k}",
                    "gpus": each if k < sites - 1 else max(each // 100, 1),
                    "price_per_gpu_hour": 2.5,
                }
                for k in range(sites)
            ],
            "links": [
                {
                    "from": f"s{a}",
                    "to": f"s{b}",
                    "latency_ms": 20 * (b - a),
                    "capacity_gbps": 5,
                    "egress_per_gb": 0.02,
                }
                for b in range(sites)
                for a in range(b)
            ],
        }
    )
)
