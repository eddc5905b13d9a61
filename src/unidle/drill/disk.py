"""A small disk of their own for a job's checkpoints, that can be filled and slowed down.

It is an ext4 file system in a file, on a loop device; cgroups bound what is written to that device. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

from unidle.errors import CannotRun

_THROTTLE: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
_FILLER: Final = ".filler"
_CHUNK_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096


def why_no_disk(*, slow: bool) -> str | None:
    """Why there can be no such disk here; None where there can."""
    if os.geteuid() != 0:
        return "it needs root"
    for program in ("losetup", "mkfs.ext4", "mount"):
        if shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            return f"it needs {program}"
    if slow and not _THROTTLE.exists():
        return "it needs the blkio controller of cgroup v1"
    return None


class Disk:
    """A disk of ``size_bytes`` at ``place``, its content in ``image``. Errors: :class:`CannotRun`."""

    def __init__(self, place: Path, image: Path, size_bytes: int) -> None:
        self.place, self._image, self.device = place, image, ""
        place.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        try:
            _run("mkfs.ext4", "-q", "-m", "0", "-O", "^has_journal", str(image))
            self.device = _run("losetup", "--find", "--show", str(image)).strip()
            _run("mount", self.device, str(place))
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise CannotRun(
                f"no disk for the checkpoints can be made here: {said}",
                remedy="leave disk_full and disk_slow out",
            ) from error
        shutil.rmtree(place / "lost+found", ignore_errors=True)

    def fill(self) -> None:
        """Take all that is free."""
        with (self.place / _FILLER).open("wb", buffering=0) as file:
            for size in (
                _CHUNK_BYTES,
                _BLOCK_BYTES,
                _BLOCK_BYTES,
            ):  # what is written late may leave blocks over
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass
                with contextlib.suppress(OSError):
                    os.fsync(file.fileno())

    def empty(self) -> None:
        """Undo :meth:`fill`."""
        (self.place / _FILLER).unlink(missing_ok=True)

    def slow(self, bytes_per_s: int) -> None:
        """At most so many bytes are written a second; 0: as many as can be."""
        number = Path(self.device).stat().st_rdev
        _THROTTLE.write_text(f"{os.major(number)}:{os.minor(number)} {bytes_per_s}\n")

    def close(self) -> None:
        """The disk and its content are gone."""
        if self.device:
            with contextlib.suppress(OSError):
                self.slow(0)
            _quietly("umount", "--lazy", str(self.place))
            _quietly("losetup", "--detach", self.device)
        self._image.unlink(missing_ok=True)


def _run(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout


def _quietly(*words: str) -> None:
    subprocess.run(words, check=False, capture_output=True, stdin=subprocess.DEVNULL)
