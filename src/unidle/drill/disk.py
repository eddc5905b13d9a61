"""A small disk for a job's checkpoints that can be filled and slowed down, or for a whole drill that can lose its power.

It is an ext4 file system in a file, on a loop device; cgroups bound what is written to that device. Needs root.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from unidle.errors import CannotRun

_THROTTLE: Final = Path("/sys/fs/cgroup/blkio/blkio.throttle.write_bps_device")
_FILLER: Final = ".filler"
_CHUNK_BYTES: Final = 1 << 20
_BLOCK_BYTES: Final = 4096
_SHUTDOWN: Final = 0x8004587D  # EXT4_IOC_SHUTDOWN
_NO_LOG_FLUSH: Final = 2  # EXT4_GOING_FLAGS_NOLOGFLUSH: nothing more reaches the disk
_UNMOUNT_S: Final = 20.0


def why_no_disk(*, slow: bool, others: tuple[str, ...] = ()) -> str | None:
    """Why there can be no such disk here, or not ``others`` (programs); None where there can."""
    if os.geteuid() != 0:
        return "it needs root"
    for program in ("losetup", "mkfs.ext4", "mount", *others):
        if shutil.which(program, path=f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin") is None:
            return f"it needs {program}"
    if slow and not _THROTTLE.exists():
        return "it needs the blkio controller of cgroup v1"
    return None


class Disk:
    """A disk of ``size_bytes`` at ``place``, its content in ``image``. Errors: :class:`CannotRun`.

    ``journaled``: with the journal that a file system needs to survive :meth:`cut`.
    """

    def __init__(self, place: Path, image: Path, size_bytes: int, *, journaled: bool = False) -> None:
        self.place, self._image, self.device = place, image, ""
        place.mkdir(parents=True, exist_ok=True)
        with image.open("wb") as file:
            file.truncate(size_bytes)
        try:
            journal = "has_journal" if journaled else "^has_journal"
            _run("mkfs.ext4", "-q", "-m", "0", "-O", journal, str(image))
            self.device = _run("losetup", "--find", "--show", str(image)).strip()
            _run("mount", self.device, str(place))
        except (OSError, subprocess.CalledProcessError) as error:
            self.close()
            said = error.stderr.strip() if isinstance(error, subprocess.CalledProcessError) else error
            raise CannotRun(
                f"no disk can be made here: {said}", remedy="leave disk_full, disk_slow and power_cut out"
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

    def sync(self) -> None:
        """All that was written is on the disk."""
        _run("sync", "--file-system", str(self.place))

    def cut(self) -> None:
        """From now on nothing reaches the disk: what was not synced is lost, as when the power fails.

        Every access fails until :meth:`mount_again`. Errors: OSError where the kernel cannot do it.
        """
        fd = os.open(self.place, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def mount_again(self) -> None:
        """After :meth:`cut`, once no process uses the disk: what it has by its own journal. Errors: :class:`CannotRun`."""
        end = time.monotonic() + _UNMOUNT_S
        while not self._mounted_afresh():
            if time.monotonic() > end:
                raise CannotRun("a process still uses the disk", field=str(self.place))
            time.sleep(0.02)

    def _mounted_afresh(self) -> bool:
        """Whether it is no longer the file system that was shut down: that one lives as long as a process that ends has it."""
        try:
            _run("umount", str(self.place))
        except subprocess.CalledProcessError:
            return False
        _run("mount", self.device, str(self.place))
        try:
            with tempfile.TemporaryFile(dir=self.place):
                return True
        except OSError:
            return False

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
