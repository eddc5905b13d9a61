"""The join file: whom it belongs to and who can read it decides whether a host joins with it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import needs
from unidle.agent.join_file import read_join_file
from unidle.errors import BadInput


def written(path: Path, content: object, mode: int = 0o600) -> str:
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    path.chmod(mode)
    return str(path)


def test_a_join_file_has_a_token_and_an_authority(tmp_path: Path) -> None:
    found = read_join_file(written(tmp_path / "join", {"token": "t", "authority": "PEM", "more": 1}))
    assert (found.token, found.authority) == ("t", "PEM")
    assert read_join_file(written(tmp_path / "join", {"token": "t"})).authority == ""


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o660, 0o604])
def test_a_file_that_others_can_read_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "join", {"token": "t"}, mode)
    with pytest.raises(BadInput, match=rf"mode {mode:04o}.*chmod 600 {path}") as error:
        read_join_file(path)
    assert error.value.exit_code == 2


@needs.root
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "join", {"token": "t"})
    os.chown(path, 1, 1)
    with pytest.raises(BadInput, match=r"belongs to .*decides which fleet"):
        read_join_file(path)


@pytest.mark.parametrize(
    "content", ["", "t", "[]", '"t"', {"token": ""}, {"token": 1}, {"authority": "PEM"}, {"token": "t", "authority": 1}]
)  # fmt: skip
def test_another_file_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(BadInput, match="is not a join file"):
        read_join_file(written(tmp_path / "join", content))


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        read_join_file(str(tmp_path / "none"))
    with pytest.raises(BadInput, match="not a regular file"):
        read_join_file(str(tmp_path))
