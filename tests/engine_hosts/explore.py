import sys
import time
import traceback

sys.path.insert(0, "tests")
from engine_hosts.fencing_model import Violation, World

a, b = int(sys.argv[1]), int(sys.argv[2])
broken = " ".join(sys.argv[3:])
t = time.time()
bad = 0
n = 0
att = 0
for seed in range(a, b):
    try:
        w = World(seed, broken)
        w.run()
        att += sum(map(len, w.log.jobs.values()))
    except Violation as e:
        bad += 1
        print(seed, str(e)[:600])
        if bad > 5:
            break
    except Exception:
        print("seed", seed)
        traceback.print_exc()
        break
    n += 1
print(n, bad, att, time.time() - t)
