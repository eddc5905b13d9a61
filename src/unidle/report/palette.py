"""One colour per ledger group, shades of it per leaf, the same on every surface."""

from __future__ import annotations

from typing import Final

from unidle.ledger.taxonomy import GROUP_COLOURS, GROUP_OF, GROUPS

Rgb = tuple[int, int, int]

# The first leaf of a group has the group's own colour; the rest alternate lighter and darker.
_LIGHTEST: Final = 0.75
_DARKEST: Final = 0.5


def rgb(colour: str) -> Rgb:
    """``#rrggbb`` as three numbers from 0 to 255."""
    return int(colour[1:3], 16), int(colour[3:5], 16), int(colour[5:7], 16)


def mix(colour: Rgb, other: Rgb, amount: float) -> Rgb:
    """``colour`` moved by ``amount`` (0 to 1) towards ``other``."""
    r, g, b = (round(a + (c - a) * amount) for a, c in zip(colour, other, strict=True))
    return r, g, b


def hex_colour(colour: Rgb) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)


def luminance(colour: Rgb) -> float:
    """Relative luminance from 0 to 1 (WCAG 2.2)."""
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (v / 255 for v in colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: Rgb, b: Rgb) -> float:
    """Contrast ratio from 1 to 21 (WCAG 2.2)."""
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def ink_on(colour: Rgb) -> str:
    """Black or white, whichever reads better on ``colour``."""
    black, white = (0, 0, 0), (255, 255, 255)
    return "#000000" if contrast(colour, black) >= contrast(colour, white) else "#ffffff"


def group_order() -> tuple[str, ...]:
    """The groups from useful to unseen, as every picture lists them."""
    return tuple(GROUP_COLOURS)


def leaf_colours() -> dict[str, str]:
    """``#rrggbb`` of each leaf of the taxonomy."""
    return {leaf: _shade(group, k) for group, leaves in GROUPS.items() for k, leaf in enumerate(leaves)}


_FIRST: Final = 1 / 6


def _shade(group: str, index: int) -> str:
    base = rgb(GROUP_COLOURS[group])
    if index == 0:
        return GROUP_COLOURS[group]
    pairs = len(GROUPS[group]) // 2
    level = (index + 1) // 2
    # the first shade of a large group is as far from the group's colour as that of a smaller one
    least = max(1 / pairs, _FIRST)
    amount = least + (1 - least) * (level - 1) / max(pairs - 1, 1)
    if index % 2:
        return hex_colour(mix(base, (255, 255, 255), _LIGHTEST * amount))
    return hex_colour(mix(base, (0, 0, 0), _DARKEST * amount))


def leaf_colour(leaf: str, group: str) -> str:
    """The leaf's shade; for a leaf of another taxonomy version the colour of its group."""
    if leaf in GROUP_OF:
        return leaf_colours()[leaf]
    return GROUP_COLOURS.get(group, GROUP_COLOURS["unseen"])


def ansi_256(colour: str) -> int:
    """The nearest of the 216 colours and 24 greys that every modern terminal has."""
    wanted = rgb(colour)
    levels = (0, 95, 135, 175, 215, 255)
    cube = {
        16 + 36 * r + 6 * g + b: (levels[r], levels[g], levels[b])
        for r in range(6)
        for g in range(6)
        for b in range(6)
    }
    greys = {232 + k: (8 + 10 * k,) * 3 for k in range(24)}
    everything = cube | greys
    return min(everything, key=lambda code: _distance(wanted, everything[code]))


def _distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
