"""The engine of Kubernetes: ranks in boxes that are pods; the state machine is that of ``unidle.engine.hosts``."""
