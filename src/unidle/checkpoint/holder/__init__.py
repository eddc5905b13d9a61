"""The process that holds copies of ranks' states in memory, writes them to storage and passes them to its peer.

It is no child of any rank, needs the standard library only, and outlives the ranks. What it holds are files in
``/dev/shm``, so that even its own end loses nothing: the next holder of the same place takes them over.
"""
