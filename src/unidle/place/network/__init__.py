"""The network of a fleet: which domain holds a gang, in which order its ranks go, and what their traffic costs."""
