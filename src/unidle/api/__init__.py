"""unidle from Python: run and submit jobs, wait for them, ask what became of them. ``import unidle`` has the names.

Nothing is imported here: the command line uses rooms of this package, and has to start fast.
"""
