"""The former name of :mod:`unidle.span.wan`, which re-exports it for programs that import it. New ones use the new name."""

from __future__ import annotations

try:
    from unidle.span.wan import *  # noqa: F403
    from unidle.span.wan import __all__ as __all__
except ModuleNotFoundError as missing:
    raise ImportError("unidle.rank.wan is in an extra: pip install 'unidle[span]'") from missing
