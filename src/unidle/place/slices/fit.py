"""Parts for the ranks of one gang, one after the other: the cheapest, within what its queue may still be charged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from unidle.fleet import WHOLE_PPM, Device
from unidle.jobs import JobSpec, RankPlace, Reason, Share
from unidle.place.model import Amounts
from unidle.share.choose import Choice, choose
from unidle.share.interference import Interference
from unidle.share.modes import Oversubscription
from unidle.share.offers import Gpu, SharePolicy, Wish, promises
from unidle.share.parts import PartPromise, share_of, used_parts, with_part
from unidle.share.refusal import PartRefused, refused
from unidle.view.usage import milli_of
from unidle.words import counted

PARTS_WAIT: Final = Reason("no_share", "no device that may be cut has a part for it")

MayOpen = Callable[[Device, int], bool]
"""``may_open(device, n)``: whether this empty device may be taken for parts, as the ``n``-th of its node."""
OVER_QUOTA: Final = "over_quota"
_SOMEONE: Final = "?"  # a part without a job would be the rest


def _always(_device: Device, _count: int) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class SliceBounds:
    """What bounds a search: empty devices that may be opened, and the charge of the whole gang, in thousandths of devices.

    The search is made as if the jobs ``gone`` had left. ``every``: check every device, also those equal to one
    already checked, so that a reason counts them all.
    """

    may_open: MayOpen = _always
    most_milli: int | None = None
    gone: frozenset[str] = frozenset()
    every: bool = False


@dataclass(frozen=True, slots=True)
class SliceFit:
    """Parts for a gang, not yet taken. ``devices`` are as they will be; ``opened`` counts by node those that were empty.

    ``milli`` is what the parts count together, in thousandths of devices.
    """

    job: str
    places: tuple[RankPlace, ...]
    devices: dict[str, Device]
    opened: dict[str, int]
    because: Reason
    milli: int


class StartRoom(NamedTuple):
    """What a job would start on: whole devices by node, those that it gets parts of, and what it is charged."""

    devices: Mapping[int, int]
    parts: tuple[str, ...]
    charged: Amounts


class DeviceOffers(Protocol):
    """What a search sees of the devices (``slices.devices.Devices``)."""

    @property
    def table(self) -> Interference: ...
    def now(self, device_id: str) -> Device | None: ...
    def gpu(self, device: Device) -> Gpu: ...
    def host_full(self, node: str, spec: JobSpec, ranks: int) -> bool: ...


class SliceSearch:
    """A part for each rank of ``job``, or none."""

    def __init__(
        self, offers: DeviceOffers, job: str, spec: JobSpec, share: Share, terms: SliceBounds
    ) -> None:
        self._offers, self._spec, self._share, self._terms = offers, spec, share, terms
        self._job = job or _SOMEONE

    def over(self, devices: Sequence[Gpu]) -> SliceFit | PartRefused:
        """Parts of these devices, the cheapest that may be charged.

        Where the ones of the best price count for too much, those that count no more than a rank's even share
        are tried, and last those that count least, whatever their price.
        """
        most, ranks = self._terms.most_milli, self._spec.ranks
        if most is None:
            return self._one_by_one(devices, (WHOLE_PPM,))
        found = self._one_by_one(devices, (_ppm_within(most),))
        if isinstance(found, SliceFit) or ranks == 1:
            return found
        for sizes in ((_ppm_within(most // ranks),), self._sizes(devices)):
            other = self._one_by_one(devices, sizes)
            if isinstance(other, SliceFit):
                return other
        return found

    def _sizes(self, devices: Sequence[Gpu]) -> tuple[int, ...]:
        """What a part may count on these devices, the least first."""
        counts = {
            milli_of(share_of(replace(gpu.device, cut=None), promise))
            for gpu in devices
            for promise in promises(gpu.device, self._share)
        }
        return tuple(_ppm_within(milli) for milli in sorted(counts)) or (WHOLE_PPM,)

    def _one_by_one(self, devices: Sequence[Gpu], sizes: Sequence[int]) -> SliceFit | PartRefused:
        """A part for each rank in turn, each of the first of ``sizes`` (ppm, at most) for which there is one."""
        taken = _Taken(self._offers, self._spec, {gpu.device.id: gpu for gpu in devices})
        while len(taken.names) < self._spec.ranks:
            chosen = self._first(taken, sizes)
            if isinstance(chosen, PartRefused):
                return chosen
            taken.add(self._job, *chosen)
            if self._terms.most_milli is not None and taken.milli > self._terms.most_milli:
                return refused(OVER_QUOTA, "the parts would be charged more than the queue may use")
        return taken.given(self._job)

    def _first(self, taken: _Taken, sizes: Sequence[int]) -> tuple[Choice, Device] | PartRefused:
        usable = [
            gpu
            for gpu in taken.open.values()
            if gpu.residents or self._terms.may_open(gpu.device, taken.opened.get(gpu.device.node, 0) + 1)
        ]
        answer: tuple[Choice, Device] | PartRefused = PartRefused(PARTS_WAIT)
        for most_ppm in sizes:
            answer = self._one(usable, most_ppm)
            if not isinstance(answer, PartRefused):
                break
        return answer

    def _one(self, devices: Sequence[Gpu], most_ppm: int) -> tuple[Choice, Device] | PartRefused:
        """The cheapest part for one rank. Devices may be promised by different factors: of each the best is compared."""
        best: tuple[Choice, Device] | None = None
        answer: PartRefused | None = None
        load = self._offers.table.load_of_part(self._spec.name, _asked_ppm(devices, self._share))
        wish = Wish(self._share, load, self._spec.where, most_ppm=most_ppm)
        for over, some in _by_factor(devices).items():
            found = choose(wish, some, self._offers.table, SharePolicy(Oversubscription(*over)))
            if isinstance(found, PartRefused):
                answer = answer or found
            elif best is None or found.price_ppm < best[0].price_ppm:
                best = (found, next(g.device for g in some if g.device.id == found.device))
        return best or answer or PartRefused(PARTS_WAIT)


class _Taken:
    """The parts that the gang has so far."""

    def __init__(self, offers: DeviceOffers, spec: JobSpec, devices: dict[str, Gpu]) -> None:
        self._offers, self._spec, self.open = offers, spec, devices
        self.opened: dict[str, int] = {}
        self.names: list[tuple[str, str]] = []
        self.milli = 0
        self._ranks: dict[str, int] = {}
        self._changed: dict[str, Device] = {}
        self._because: Reason | None = None

    def add(self, job: str, choice: Choice, device: Device) -> None:
        """One part more; without one, the device or its node is not open any more."""
        node, ranks = device.node, self._ranks.get(device.node, 0) + 1
        if self._offers.host_full(node, self._spec, ranks):
            self.open = {name: gpu for name, gpu in self.open.items() if gpu.device.node != node}
            return
        base = self._offers.now(device.id) or device
        instance = choice.plan.serve[0] if choice.plan is not None else None
        promise = PartPromise(job, choice.mode, choice.compute_ppm, choice.memory_bytes, instance)
        made = with_part(device, promise, base.generation + 1)
        if made is None:  # its shares are given away though more could be promised
            del self.open[device.id]
            return
        if not used_parts(device):
            self.opened[node] = self.opened.get(node, 0) + 1
        self._changed[device.id], part = made
        self.open[device.id] = self._offers.gpu(made[0])
        self._ranks[node] = ranks
        self.names.append((node, f"{device.id}#{part.name}"))
        self.milli += milli_of(part.share_ppm)
        self._because = self._because or choice.because

    def given(self, job: str) -> SliceFit:
        because = self._because
        assert because is not None
        if len(self.names) > 1:
            figures = {**because.figures, "parts": len(self.names), "devices": len(self._changed)}
            text = f"{counted(len(self.names), 'part')} of {counted(len(self._changed), 'device')}; the first: {because.text}"
            because = Reason(because.code, text, figures)
        places = tuple(RankPlace(rank, node, (name,)) for rank, (node, name) in enumerate(self.names))
        return SliceFit(job, places, self._changed, self.opened, because, self.milli)


def _ppm_within(milli: int) -> int:
    """The largest share that counts no more than so many thousandths."""
    return min(milli * 1_000 + 999, WHOLE_PPM)


def _by_factor(devices: Sequence[Gpu]) -> dict[tuple[int, int], list[Gpu]]:
    found: dict[tuple[int, int], list[Gpu]] = {}
    for gpu in devices:
        sharing = gpu.device.sharing
        assert sharing is not None
        found.setdefault((sharing.compute_ppm, sharing.memory_ppm), []).append(gpu)
    return found


def _asked_ppm(devices: Sequence[Gpu], share: Share) -> int:
    """What the share means in compute on the first of the devices on which it means anything."""
    if share.compute_ppm:
        return share.compute_ppm
    means = (p.compute_ppm for gpu in devices for p in promises(gpu.device, share))
    return next(means, WHOLE_PPM)
