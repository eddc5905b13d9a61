"""The agent in a pod of a DaemonSet: boxes are pods of its node, whose files and processes it reads from outside."""
