"""Notices: operators are told what happened to jobs and nodes, once each, whatever fails on the way."""
