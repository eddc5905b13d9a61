"""Ranks on one machine, held by the local engine or by a box. The standard library only, from Python 3.8 on.

This file stays empty of imports: the supervisor loads this package outside of ``unidle``.
"""
