"""Packing: which node and which of its GPUs one request gets, at thousands of decisions a second.

``packer`` keeps what is free and decides, the scorers say what is good: ``fragmentation`` as published, ``scarcity``
ours. ``experiment`` runs the published experiment.
"""
