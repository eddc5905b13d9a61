"""Notices: operators are notified of what happened to jobs and nodes, once each, whatever fails on the way."""
