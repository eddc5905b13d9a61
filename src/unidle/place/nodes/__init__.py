"""The devices of each node: what there is, what is free, for whom, and how they are connected."""
