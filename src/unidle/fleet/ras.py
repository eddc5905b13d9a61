"""Errors that AMD's GPUs could not correct, as the kernel counts them."""

from __future__ import annotations

from pathlib import Path

from unidle.fleet.pci import read_text


def ras_errors(sysfs: Path = Path("/sys")) -> dict[str, int]:
    """By card, the sum of ``ue: N`` in its ``ras/*_err_count`` files (the kernel's amdgpu documentation)."""
    counts: dict[str, int] = {}
    for file in sorted((sysfs / "class/drm").glob("card[0-9]*/device/ras/*_err_count")):
        for line in read_text(file).splitlines():
            name, _, number = line.partition(":")
            if name.strip() == "ue" and number.strip().isdecimal():
                card = file.parts[-4]
                counts[card] = counts.get(card, 0) + int(number)
    return counts
