"""Packing: which node and which of its GPUs one request gets, at thousands of decisions a second.

``pool`` keeps what is free, ``engine`` decides, the scorers say what is good: ``classic`` and ``fgd`` as
published, ``unidle`` ours. ``replay`` runs the published experiment.
"""
