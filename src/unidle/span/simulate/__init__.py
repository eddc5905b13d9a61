"""When each operation of an iteration happens under a schedule, whether that may be, and what no order can beat. Pure.

`schedules/` decides who computes what in which order, `engine.py` when that happens, `check.py` whether it may, `bound.py`
what no order can beat. ATLAS and Varuna are reconstructed.
"""
