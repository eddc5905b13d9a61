"""How one GPU is cut, and for whom: MIG, MPS, time slices, interference, idle holders. Pure decisions."""
