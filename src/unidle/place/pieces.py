"""A fleet's slices of one kind of device as arrays, and which of them a job may ever use.

A node's slices are bits of a mask, in the order of ``Occupancy``: 64 to a word, words in rising order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from unidle.fleet import WHOLE_PPM, Device, Node, Slice, slices_of
from unidle.jobs import JobSpec, Share, Where
from unidle.place.pools import Pool
from unidle.place.tree import Bools, Ints
from unidle.share.mig_models import mig_models, model_of, named_so
from unidle.share.select import may_use, may_use_any

Masks: TypeAlias = NDArray[np.uint64]
"""Shape (N, W): by node, W words of 64 slices each."""

WORD: Final = 64
_LOW: Final = (1 << WORD) - 1


class Pieces:
    """All slices of one kind; arrays have one row for each node that has some, one column for each bit."""

    def __init__(self, kind: str, nodes: Sequence[Node], positions: Sequence[int]) -> None:
        """``positions`` are those of the nodes that have devices of the kind."""
        self.kind, self._nodes = kind, nodes
        self._rows: Ints = np.array(positions, np.int64)
        alike: dict[tuple[_Form, ...], list[int]] = {}  # rows of nodes with the same devices
        for row, position in enumerate(positions):
            alike.setdefault(_form(nodes[position], kind), []).append(row)
        width = max((sum(len(cut) for _, cut, _ in forms) for forms in alike), default=0)
        self.words = max(-(-width // WORD), 1)
        shape = (len(positions), width)
        self._model = np.full(shape, -1, np.int32)  # -1: no such slice
        self._ppm = np.zeros(shape, np.int32)
        self._memory = np.zeros(shape, np.int64)  # bytes of the slice
        self._cut = np.zeros(shape, np.bool_)
        self._models: dict[tuple[str, str, int], tuple[int, Device]] = {}  # by vendor, model and memory
        for rows in alike.values():
            for bit, (device, piece) in enumerate(pieces_of(nodes[positions[rows[0]]], kind)):
                model = (device.vendor, device.model, device.memory_bytes)
                code = self._models.setdefault(model, (len(self._models), device))[0]
                self._model[rows, bit], self._ppm[rows, bit] = code, piece.share_ppm
                self._memory[rows, bit] = device.memory_bytes * piece.share_ppm // WHOLE_PPM
                self._cut[rows, bit] = len(device.slices_ppm) > 1
        self._some_cut = bool(self._cut.any())
        # where some devices are not cut, parts are for those who ask for parts
        self._some_whole = bool((~self._cut & (self._model >= 0)).any())
        # what the parts count that there are, in ppm of a device
        self._part_sizes = np.unique(self._ppm[self._cut]).tolist()

    def allowed(self, spec: JobSpec, open_nodes: Bools, pool: Pool) -> Masks:
        """The slices of a pool that a job with these wishes may ever use.

        ``open_nodes``, (N,), are those it may use at all.
        """
        fits = (self._model >= 0) & open_nodes[self._rows][:, None]
        if pool.vendor or pool.models:
            fits &= np.isin(self._model, [code for code, device in self._models.values() if pool.has(device)])
        if not may_use_any(spec.where):
            fits &= self._chosen(spec.where)
        if spec.share is not None:
            fits &= self._parts(spec.share)
        elif self._some_cut and self._some_whole:
            fits &= ~self._cut
        return self._packed(fits)

    def uneven(self, spec: JobSpec) -> bool:
        """Whether the slices that this job may have are parts that count differently."""
        return len(self._part_sizes) > 1 and (spec.share is not None or not self._some_whole)

    def _chosen(self, where: Where) -> Bools:
        if where.uuids.include or where.uuids.exclude:
            found = np.zeros(self._model.shape, np.bool_)
            for row, position in enumerate(self._rows.tolist()):
                for bit, (device, _) in enumerate(pieces_of(self._nodes[position], self.kind)):
                    found[row, bit] = may_use(device, where) is None
            return found
        codes = [code for code, device in self._models.values() if may_use(device, where) is None]
        named: Bools = np.isin(self._model, codes)
        return named

    def _parts(self, share: Share) -> Bools:
        """Declared slices that are large enough, on devices that can isolate them in the mode that the share requires."""
        enough: Bools = self._cut & (self._ppm >= share.compute_ppm) & (self._memory >= share.memory_bytes)
        if share.profile or share.mode != "any":
            least = np.array([_least_ppm(device, share) for _, device in self._models.values()], np.int64)
            enough &= self._ppm >= least[self._model]
        return enough

    def _packed(self, fits: Bools) -> Masks:
        masks = np.zeros((len(self._nodes), self.words * WORD // 8), np.uint8)
        packed = np.packbits(fits, axis=1, bitorder="little")
        masks[self._rows, : packed.shape[1]] = packed
        return masks.view("<u8").astype(np.uint64, copy=False)


def _least_ppm(device: Device, share: Share) -> int:
    """What a slice of this device has at least for a MIG profile or a mode; more than all where it never does."""
    if device.kind == "cpu" or (device.vendor != "nvidia" and (share.profile or share.mode != "time")):
        return WHOLE_PPM + 1
    if not share.profile and share.mode != "mig":
        return 0
    known = model_of(device.model, device.memory_bytes)
    maybe = (known,) if known else named_so(device.model) if device.model else mig_models()
    if not share.profile:
        return 0 if maybe else WHOLE_PPM + 1
    sizes = (model.compute_ppm(model.profile(share.profile)) for model in maybe if model.knows(share.profile))
    return min(sizes, default=WHOLE_PPM + 1)


_Form: TypeAlias = tuple[tuple[str, str], tuple[int, ...], int]


def _form(node: Node, kind: str) -> tuple[_Form, ...]:
    """What counts of a node's devices here: vendor and model, cut and memory."""
    return tuple(((d.vendor, d.model), d.slices_ppm, d.memory_bytes) for d in node.devices if d.kind == kind)


def pieces_of(node: Node, kind: str) -> list[tuple[Device, Slice]]:
    """A node's slices of one kind, in the order of its bit mask; a device that is cut on demand is one there."""
    return [
        (device, piece)
        for device in node.devices
        if device.kind == kind
        for piece in (slices_of(device) if device.cut is None else [Slice(device.id, device.id, WHOLE_PPM)])
    ]


def words_of(mask: int, words: int) -> list[int]:
    """A mask as words."""
    return [mask] if words == 1 else [mask >> WORD * k & _LOW for k in range(words)]


def mask_of(words: Masks) -> int:
    """Words, shape (W,), as a mask."""
    found: list[int] = words.tolist()
    return found[0] if len(found) == 1 else sum(word << WORD * k for k, word in enumerate(found))


def counted(masks: Masks) -> Ints:
    """How many slices each row has. Shape (N,)."""
    ones = np.bitwise_count(masks)
    found: Ints = ones[:, 0].astype(np.int64) if ones.shape[1] == 1 else ones.sum(axis=1, dtype=np.int64)
    return found
