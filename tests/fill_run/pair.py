"""Two ranks of gloo, of which the second is slower: the first waits for what it receives. Run with the number of steps."""

import sys
import time

import torch
import torch.distributed as dist

import unidle.rank as rank


def main(steps: int) -> None:
    rank.show_waits()
    rank.show_waits()  # once more has no effect
    dist.init_process_group("gloo")
    me, value = dist.get_rank(), torch.zeros(4)
    for step in range(1, steps + 1):
        if me == 0:
            work = dist.irecv(value, 1)
            assert work is not None
            work.wait()
        else:
            time.sleep(0.02)
            dist.send(value + step, 0)
        rank.step(step)
    print(rank._board.waits if rank._board else 0, value.sum().item())


if __name__ == "__main__":
    main(int(sys.argv[1]))
