"""Takes more memory than it may."""
blocks = []
for step in range(1, 1000):
    blocks.append(bytearray(b"x") * (16 << 20))
    print(f"step {step} loss {1 / step:.3f}", flush=True)
