"""The engine of one machine: ranks are local processes, each under a small supervisor.

This file stays empty of imports: the supervisor loads this package outside of ``unidle``, with the
standard library alone. The engine itself is ``unidle.engine.local.engine.LocalEngine``.
"""
