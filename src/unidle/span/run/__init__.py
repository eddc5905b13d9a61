"""Real runs of a span plan: where its devices are, the gang that trains, attempts and new plans, what was measured.

`hosts.py` finds where devices are and what their links are, `coordinator.py` decides plans and attempts, `launchers.py`
reaches the launchers of other sites, `compare.py` runs the same training in other ways.
"""
