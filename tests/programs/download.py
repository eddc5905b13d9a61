"""Downloads that look like progress, and then work without steps."""
import sys
import time

for percent in range(0, 101, 5):
    sys.stderr.write(f"\r{percent:3d}%|{'#' * (percent // 10):10s}| {percent * 1.7:.1f}M/170M [00:02<00:00, 60.1MB/s]")
    time.sleep(0.005)
sys.stderr.write("\n")
print("Extracting data/cifar-10-python.tar.gz to data")
print("done")
