"""Activations and gradients between parts: receives posted ahead in the plan's order, sends that nothing waits for."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from torch import Tensor

from unidle.rank import waiting
from unidle.span.rank.mesh import Mesh, PeerWire
from unidle.span.rank.model import Values
from unidle.span.rank.plan import Op, PlanDevice, RunPlan
from unidle.span.rank.tensors import (
    HEADER_BYTES,
    Codec,
    Shape,
    bytes_of,
    header,
    host_buffer,
    on_host,
    shape_of,
    shapes_from,
)

_AHEAD_BYTES: Final = 64 << 20  # receive buffers that are posted ahead; two at least, and not above
_AHEAD_MOST: Final = 64


@dataclass(slots=True)
class Waits:
    """Waits of one step, in nanoseconds: in total, and for transfers between sites; and bytes sent between sites."""

    wait_ns: int = 0
    exposed_wan_ns: int = 0
    wan_bytes: int = 0


class _Need(NamedTuple):
    kind: str  # F: a part's inputs, B: the gradients of its outputs
    part: int
    microbatch: int


@dataclass(slots=True)
class _Posted:
    need: _Need
    shapes: list[Shape]
    buffers: list[list[Tensor]]
    futures: list[Future[memoryview]]
    made: tuple[bytearray, Future[memoryview]] | None
    size: int = field(default=0)


class Transfers:
    """Tensors that one device receives and sends. ``row`` is called for each send: step, kind, microbatch, part,
    start, bytes, when it is over.
    """

    def __init__(
        self, plan: RunPlan, me: PlanDevice, mesh: Mesh, steps: int, row: Callable[..., None] | None
    ) -> None:
        self._plan, self._me, self._mesh, self._row = plan, me, mesh, row
        self.waits = Waits()
        self._inside: dict[_Need, Values] = {}  # from a part of this device to the next
        self._shapes: dict[tuple[str, int], list[Shape]] = {}
        self._posted: deque[_Posted] = deque()
        self._ahead = 0
        self._needs = self._all_needs(steps)
        self._next = next(self._needs, None)
        self._told: set[int] = set()
        self._headers = {
            part: (data := bytearray(HEADER_BYTES), self._wire(part - 1).channel.recv(f"H.{part}", data))
            for part in range(me.stage, plan.parts, plan.stages)
            if part and self._remote(part - 1)
        }

    def _stage(self, part: int) -> int:
        return part % self._plan.stages

    def _remote(self, part: int) -> bool:
        return self._stage(part) != self._me.stage

    def _wire(self, part: int) -> PeerWire:
        return self._mesh.wires[self._stage(part)]

    def _codec(self, wire: PeerWire) -> Codec:
        return Codec(self._plan.activations if wire.link.wan else None)

    def _source(self, kind: str, part: int) -> int | None:
        """The part on another device that it comes from."""
        source = part - 1 if kind == "F" else part + 1
        return source if 0 <= source < self._plan.parts and self._remote(source) else None

    def _all_needs(self, steps: int) -> Iterator[_Need]:
        wanted = [
            _Need(op.kind, part, op.microbatch)
            for op in self._me.order
            for part in [self._part(op)]
            if op.kind in "FB" and self._source(op.kind, part) is not None
        ]
        for _ in range(steps):
            yield from wanted

    def _part(self, op: Op) -> int:
        return op.chunk * self._plan.stages + self._me.stage

    def know(self, part: int, outputs: Values) -> None:
        """Record a part's outputs, which determine the shapes of the gradients that come back."""
        if ("B", part) not in self._shapes:
            self._shapes["B", part] = [shape_of(v) for v in outputs if v.is_floating_point()]
            self._post()

    def _post(self) -> None:
        """Post the next receives, as far as their shapes are known and memory is given to them."""
        while (need := self._next) is not None:
            shapes = self._shapes.get((need.kind, need.part))
            full = len(self._posted) >= (2 if self._ahead >= _AHEAD_BYTES else _AHEAD_MOST)
            if shapes is None or full:
                return
            self._next = next(self._needs, None)
            source = self._source(need.kind, need.part)
            assert source is not None
            wire, tag = self._wire(source), ".".join(map(str, need))
            codec, device = self._codec(wire), self._me.torch_device
            buffers = [[host_buffer(s, device) for s in codec.shapes(shape)] for shape in shapes]
            flat = [tensor for group in buffers for tensor in group]
            made = None
            if wire.link.wan:
                stamp = bytearray(8)
                made = (stamp, wire.channel.recv(f"T.{tag}", stamp))
            futures = [wire.recv(f"{tag}.{k}", bytes_of(tensor)) for k, tensor in enumerate(flat)]
            size = sum(t.numel() * t.element_size() for t in flat)
            self._ahead += size
            self._posted.append(_Posted(need, shapes, buffers, futures, made, size))

    def get(self, kind: str, part: int, microbatch: int) -> Values:
        """The inputs of a part, or the gradients of its outputs: waits for them."""
        need = _Need(kind, part, microbatch)
        source = self._source(kind, part)
        if source is None:
            return self._inside.pop(need)
        begun = time.monotonic_ns()
        if kind == "F" and ("F", part) not in self._shapes:
            data, came = self._headers.pop(part)
            with waiting():
                came.result()
            self._shapes["F", part] = shapes_from(data)
        self._post()
        posted = self._posted.popleft()
        assert posted.need == need
        with waiting():
            for each in posted.futures:
                each.result()
        ended = time.monotonic_ns()
        self._ahead -= posted.size
        self.waits.wait_ns += ended - begun
        wire = self._wire(source)
        if posted.made is not None:
            stamp, told = posted.made
            told.result()
            made = int.from_bytes(stamp, "big") - wire.ahead_ns
            self.waits.exposed_wan_ns += max(0, ended - max(begun, made))
        self._post()
        codec = self._codec(wire)
        return tuple(
            codec.decode(group, shape).to(self._me.torch_device)
            for group, shape in zip(posted.buffers, posted.shapes, strict=True)
        )

    def put(self, kind: str, part: int, microbatch: int, values: Sequence[Tensor], step: int) -> None:
        """Send a part its inputs, or the gradients of its outputs, without waiting."""
        need = _Need(kind, part, microbatch)
        if not self._remote(part):
            self._inside[need] = tuple(v.detach() for v in values)
            return
        wire = self._wire(part)
        if kind == "F" and part not in self._told:
            self._told.add(part)
            wire.channel.send(f"H.{part}", header([shape_of(v) for v in values]))
        tag, begun = ".".join(map(str, need)), time.monotonic_ns()
        if wire.link.wan:
            wire.channel.send(f"T.{tag}", begun.to_bytes(8, "big"))
        sent = [on_host(t) for v in values for t in self._codec(wire).encode(v)]
        size = sum(t.numel() * t.element_size() for t in sent)
        # the first stages of a cell are in step: they take turns, so that the next ones are one slot apart
        turn = begun + wire.turn_ns(size, self._plan.cell) if kind == "F" and part == 1 else 0
        futures = [wire.send(f"{tag}.{k}", bytes_of(tensor), turn) for k, tensor in enumerate(sent)]
        self.waits.wan_bytes += size if wire.link.wan else 0
        if self._row is not None and futures:
            row = self._row

            def over(future: Future[int]) -> None:
                if future.exception() is None:
                    row(step, need.kind, microbatch, part, begun, size)

            futures[-1].add_done_callback(over)


class StagePeers:
    """The same stage in the other pipelines, for sums over pipelines; see :func:`unidle.span.rank.gradients.reduce`."""

    def __init__(self, plan: RunPlan, me: PlanDevice, mesh: Mesh, waits: Waits) -> None:
        self.pipeline, self.pipelines = me.pipeline, plan.pipelines
        self._mesh, self.waits = mesh, waits
        self._far = {p for p in range(plan.pipelines) if plan.device(p, me.stage).site != me.site}
        self._sends: list[Future[int]] = []
        self.sent_bytes = 0

    def send(self, to: int, tag: str, value: Tensor) -> None:
        size = value.numel() * value.element_size()
        self.sent_bytes += size
        self.waits.wan_bytes += size if to in self._far else 0
        self._sends.append(self._mesh.peers[to].send(tag, bytes_of(value)))

    def recv(self, source: int, tag: str, like: Tensor) -> Callable[[], Tensor]:
        buffer = host_buffer(shape_of(like), "cpu")
        future = self._mesh.peers[source].recv(tag, bytes_of(buffer))

        def wait() -> Tensor:
            begun = time.monotonic_ns()
            future.result()
            self.waits.wait_ns += time.monotonic_ns() - begun
            return buffer

        return wait

    def flush(self) -> None:
        for future in self._sends:
            future.result()
        self._sends.clear()
