"""``make test-gpu``: every GPU path for real, on a machine with an NVIDIA GPU. See docs/how-to/test-gpu.md."""
