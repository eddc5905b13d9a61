"""The shape of nanoGPT: an evaluation now and then, a line for each iteration."""
import time

print("tokens per iteration will be: 16,384")
print("number of parameters: 10.65M")
for it in range(40):
    time.sleep(0.01)
    if it % 20 == 0:
        print(f"step {it}: train loss {4.2 - it / 30:.4f}, val loss {4.3 - it / 30:.4f}")
    print(f"iter {it}: loss {4.2 - it / 30:.4f}, time {10.03:.2f}ms, mfu {1.2:.2f}%")
