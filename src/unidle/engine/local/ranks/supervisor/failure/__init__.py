"""Why a rank failed, from the end of what it printed. Standard library only, and loaded only when a rank failed.

:func:`read_failure` is pure, and linear in what it is given, whatever that is.
"""

from .end_cause import evidence as evidence
from .last_error import read_failure as read_failure
