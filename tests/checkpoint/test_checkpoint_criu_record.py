"""The record of a frozen process tree is read only if it is this user's own plain file with sound fields."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.checkpoint import criu
from unidle.errors import BadInput


def test_a_record_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text('{"pid": 4000000, "cuda": []}')
    (tmp_path / "unidle.json").symlink_to("other")
    with pytest.raises(BadInput, match="is a link"):
        criu.restore(str(tmp_path))


@pytest.mark.parametrize("pid", ["-1", "1.5", "true", '"7"', "9999999999"])
def test_a_record_with_a_wrong_process_id_is_refused(tmp_path: Path, pid: str) -> None:
    (tmp_path / "unidle.json").write_text(f'{{"pid": {pid}, "cuda": []}}')
    with pytest.raises(BadInput, match="is not a complete dump"):
        criu.restore(str(tmp_path))
