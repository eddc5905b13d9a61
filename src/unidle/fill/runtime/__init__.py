"""Fillers next to ranks of training, let in while these wait: processes, control groups, what is watched and measured."""
