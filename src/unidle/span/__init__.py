"""Training across data centres: what a schedule costs, pure.

`setting.py` defines what is trained where, `schedules/` who computes what in which order, `engine.py` when that
happens, `check.py` whether it may, `bound.py` what no order can beat. ATLAS and Varuna are reconstructed.
"""
