"""Names and formats of checkpoints: what is one, which step it holds, whether a file is whole."""

from __future__ import annotations

import os
import re

from unidle.checkpoint.safe_open import Damaged, open_file

# Compiled (and kept) by re at the first use: most ranks declare no directory.
_IN_FLUX = r"(?i)^\.|^_?te?mp[._-]|^_tmp|[._-](?:te?mp|part|partial|incomplete|writing|lock|swp|bak)(?:[._-]?\d+)?$|~$"
_NOT_ONE = (
    r"(?i)\.(?:log|out|err|csv|tsv|jsonl|md|html|png|jpg|svg|py|sh|ya?ml|toml|cfg|ini|prof|trace|rst)$|tfevents"
    r"|^(?:runs|logs?|wandb|tensorboard|tb|tb_logs|lightning_logs|mlruns|events|profile)$"
    r"|^(?:config|args|params|hparams|metrics|results?|history|settings|.*tokenizer.*|vocab|merges)\."
    r"|^(?:readme|license)"
)
_STEP = (
    r"(?i)(?:^|[^a-z0-9])(?:global[_-]?)?(?:step|iter|iteration)s?[-_=.]?(\d+)(?![\d.]*\d*e)"
    r"|^checkpoint-(\d+)$"
)
TRACKERS = ("latest_checkpointed_iteration.txt", "latest")
_DIGITS = 18

# The end record of a zip file without a comment, as torch.save and numpy.savez write it.
_ZIP_START = b"PK\x03\x04"
_ZIP_END = b"PK\x05\x06"
_ZIP_END_BYTES = 22
_ZIP_COMMENT_BYTES = 65535
_TENSORS_HEADER_BYTES = 64 * 1024 * 1024


def in_flux(name: str) -> bool:
    """Whether a name marks something unfinished."""
    return re.search(_IN_FLUX, name) is not None


def never_a_checkpoint(name: str) -> bool:
    """Whether a name is that of a log, a configuration, a vocabulary."""
    return re.search(_NOT_ONE, name) is not None


def step_in(name: str) -> int | None:
    """The step in the name of a checkpoint; ``None`` without a clear one."""
    found = list(re.finditer(_STEP, name))
    if not found:
        return None
    digits: str = found[-1][1] or found[-1][2]
    return int(digits) if len(digits) <= _DIGITS else None


def step_in_tracker(name: str, content: str) -> int | None:
    """The step that a tracker file points at: Megatron's holds a number, DeepSpeed's a name."""
    content = content.strip()
    if name != "latest" and content.isdecimal() and len(content) <= _DIGITS:
        return int(content)
    return step_in(content)


def whole(path: str, size: int) -> bool | None:
    """Whether a file of a known format was written to its end; ``None`` for an unknown format."""
    try:
        with os.fdopen(open_file(path), "rb") as file:
            head = file.read(8)
            if head.startswith(_ZIP_START):
                return _zip_ends(file.fileno(), size)
            if path.endswith(".safetensors"):
                return _tensors_end(file.fileno(), size, head)
            if path.endswith(".json") and size <= 2**20:
                file.seek(0)
                return _json_ends(file.read())
    except (Damaged, OSError):
        return False
    return None


def _zip_ends(fd: int, size: int) -> bool:
    tail = os.pread(fd, _ZIP_END_BYTES, max(0, size - _ZIP_END_BYTES))
    if tail.startswith(_ZIP_END) and tail.endswith(b"\0\0"):
        return True
    reach = min(size, _ZIP_END_BYTES + _ZIP_COMMENT_BYTES)
    tail = os.pread(fd, reach, size - reach)
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) - at < _ZIP_END_BYTES:
        return False
    comment = int.from_bytes(tail[at + 20 : at + 22], "little")
    return at + _ZIP_END_BYTES + comment == len(tail)


def _tensors_end(fd: int, size: int, head: bytes) -> bool:
    """Whether the file ends where its header puts the end of the last tensor."""
    length = int.from_bytes(head, "little")
    if len(head) < 8 or length > min(size, _TENSORS_HEADER_BYTES):
        return False
    header = os.pread(fd, length, 8)
    ends = re.findall(rb'"data_offsets"\s*:\s*\[\s*\d{1,18}\s*,\s*(\d{1,18})\s*\]', header)
    return len(header) == length and size == 8 + length + max((int(end) for end in ends), default=0)


def _json_ends(text: bytes) -> bool:
    import json

    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True
