"""A rank of a gang that works in step over TCP, without PyTorch: rank 0 adds up, the others wait for the sum.

Arguments: how many steps, and seconds of work in each: a tenth of them computing, the others as on a device, without a
processor. Rank 0 prints the steps.
"""

import os
import socket
import struct
import sys
import time

steps, work_s = int(sys.argv[1]), float(sys.argv[2])
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))


def take(peer: socket.socket) -> int:
    data = b""
    while len(data) < 8:
        got = peer.recv(8 - len(data))
        if not got:
            sys.exit(1)
        data += got
    return int(struct.unpack("q", data)[0])


peers = []
if rank == 0:
    server = socket.create_server(address, reuse_port=False)
    peers = [server.accept()[0] for _ in range(world - 1)]
else:
    for _ in range(600):
        try:
            peers = [socket.create_connection(address)]
            break
        except OSError:
            time.sleep(0.05)

for step in range(1, steps + 1):
    until = time.thread_time() + work_s / 10
    while time.thread_time() < until:
        pass
    time.sleep(work_s * 0.9)
    if rank == 0:
        total = sum(map(take, peers)) + step
        for peer in peers:
            peer.sendall(struct.pack("q", total))
        print(f"at step {step}", flush=True)
    else:
        peers[0].sendall(struct.pack("q", step))
        assert take(peers[0]) == step * world
