"""unidle from Python: run and submit jobs, wait for them, read their results. ``import unidle`` has the names.

Nothing is imported here: the command line uses rooms of this package, and has to start fast.
"""
