"""From lines of a kernel log to findings: pure, line by line, with what later lines need of earlier ones."""

from unidle.guard.log.model import TAKES_OUT, Action, Finding, LogLine, Role
from unidle.guard.log.reader import NEEDLES, Reader, findings
from unidle.guard.log.split import Splitter

__all__ = ["NEEDLES", "TAKES_OUT", "Action", "Finding", "LogLine", "Reader", "Role", "Splitter", "findings"]
