"""A file of accepted findings: only new ones are reported. A finding is known by file, code and line of code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from unidle.errors import BadInput
from unidle.tune.registry import CodeFinding

_VERSION: Final = 1


def write_baseline(path: Path, found: Iterable[CodeFinding]) -> None:
    """Errors: OSError."""
    entries = [{"file": one.file, "code": one.code, "text": one.text} for one in sorted(found)]
    path.write_text(
        json.dumps({"version": _VERSION, "findings": entries}, indent=1, ensure_ascii=False) + "\n",
        encoding="utf-8",
    )


def read_baseline(path: Path) -> Counter[tuple[str, str, str]]:
    """How often each finding is accepted. Errors: :class:`BadInput`."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if data["version"] != _VERSION:
            raise ValueError(f"version {data['version']}")
        return Counter((str(one["file"]), str(one["code"]), str(one["text"])) for one in data["findings"])
    except OSError as error:
        raise BadInput(
            f"cannot be read: {error.strerror}",
            field="--baseline",
            value=str(path),
            remedy="write it with --write-baseline",
        ) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadInput(
            "is no baseline",
            field="--baseline",
            value=str(path),
            remedy="write it again with --write-baseline",
        ) from error


def new_findings(found: Iterable[CodeFinding], accepted: Counter[tuple[str, str, str]]) -> list[CodeFinding]:
    """Those that are not accepted; of equal ones, as many as are more than accepted."""
    left = Counter(accepted)
    new = []
    for one in sorted(found):
        key = (one.file, one.code, one.text)
        if left[key] > 0:
            left[key] -= 1
        else:
            new.append(one)
    return new
