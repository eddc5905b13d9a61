"""The shape of pytorch/examples, word_language_model: a bar of columns every 200 batches."""
import time

for epoch in (1, 2):
    for batch in range(200, 3000, 200):
        time.sleep(0.01)
        print(f"| epoch {epoch:3d} | {batch:5d}/{2983:5d} batches | lr {20.0:02.2f} | ms/batch {5.21:5.2f} | "
              f"loss {7.0 - batch / 1000:5.2f} | ppl {900.0 - batch / 10:8.2f}")
    print("-" * 89)
    print(f"| end of epoch {epoch:3d} | time: {15.9:5.2f}s | valid loss {5.9:5.2f} | valid ppl {361.2:8.2f}")
    print("-" * 89)
