"""Notices for tests."""

from __future__ import annotations

from typing import Any

from unidle.notices.model import Notice, iso, notice_id

S = 1_000_000_000


def notice(n: int, subject: str = "node:n1", state: str = "fault", at_s: float = 0.0, **more: Any) -> Notice:
    """Notice number ``n``."""
    time_ns = int(at_s * S)
    fields: dict[str, Any] = {"kind": "node", "severity": "critical", "text": f"{subject} is {state}", **more}
    return Notice(
        id=notice_id("test", n),
        seq=n,
        time_ns=time_ns,
        time=iso(time_ns),
        state=state,
        subject=subject,
        **fields,
    )
