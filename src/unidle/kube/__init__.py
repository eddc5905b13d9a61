"""The API of a Kubernetes cluster: a thin client, watches with a cache, a writer, and nodes and pods as a fleet."""
