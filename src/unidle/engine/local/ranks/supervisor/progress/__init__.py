"""How far a rank is: steps and waits from its output or ``unidle.rank``, checkpoints from its files.

The supervisor of a rank, which runs without the unidle package, imports this folder as the package
``progress``: it needs the standard library only, and as little of that as it can. Marks are plain
dictionaries with the fields of ``unidle.events.marks.Mark``.
"""

from .checkpoints import CheckpointWatch
from .custom_pattern import validate_pattern
from .helper_pipe import HelperPipe
from .rank_progress import RankProgress
from .scanner import Scanner

__all__ = ["CheckpointWatch", "HelperPipe", "RankProgress", "Scanner", "validate_pattern"]
