"""The shape of minGPT: one line for every hundredth iteration, from logging."""
import logging
import time

logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
for it in range(0, 2000, 100):
    time.sleep(0.02)
    logging.getLogger("trainer").info("iter_dt %.2fms; iter %d: train loss %.5f", 10.2, it, 2.5 - it / 2000)
