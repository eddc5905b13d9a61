"""A crash in native code, as faulthandler shows it."""
import ctypes
import faulthandler

faulthandler.enable()


def kernel():
    ctypes.string_at(0)


print("step 1 loss 0.5", flush=True)
kernel()
