"""Real runs of a span plan: where its devices are, the gang that trains, attempts and new plans, what was measured.

`ground.py` finds where devices are and what their links are, `conductor.py` decides plans and attempts, `records.py` reads
what ranks write, `measured.py` compares it with the model.
"""
