"""The shape of pytorch/examples, imagenet: one process unless the environment says otherwise."""
import os

if "WORLD_SIZE" in os.environ:
    raise SystemExit("would wait for others at " + os.environ["MASTER_ADDR"])
print("Use one process for training")
