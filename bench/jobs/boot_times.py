"""A rank that notes the time since boot of its first instruction and of its first step. For bench/hosts.py.

    boot_times.py DIRECTORY STEPS_PER_S

What it noted is in DIRECTORY: `JOB.ATTEMPT.RANK` with two numbers in ns. 0 steps per second: it does one, and rests.
"""

import time

BEGAN_NS = time.clock_gettime_ns(time.CLOCK_BOOTTIME)

import os  # noqa: E402
import sys  # noqa: E402


def main() -> None:
    place, per_s = sys.argv[1], float(sys.argv[2])
    env = os.environ
    name = f"{place}/{env['UNIDLE_JOB']}.{env['UNIDLE_ATTEMPT']}.{env['UNIDLE_RANK']}"
    print("step 1/1000000", flush=True)
    with open(f"{name}.draft", "w", encoding="ascii") as file:
        file.write(f"{BEGAN_NS} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}")
    os.replace(f"{name}.draft", name)  # noqa: PTH105 - the rank imports little
    step = 1
    while True:
        time.sleep(1 / per_s if per_s else 3600)
        step += 1
        print(f"step {step}/1000000", flush=True)


main()
