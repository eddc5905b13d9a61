"""Dedicated devices for prefill: the same admission, on devices with one window without an end."""

from __future__ import annotations

from collections.abc import Iterable

from unidle.fill.model.prefill import InferenceModel
from unidle.fill.policy.controller import FillController
from unidle.fill.policy.index import NEVER
from unidle.fill.policy.pipelines import InferencePipeline
from unidle.fill.policy.requests import Accepted, PrefillRequest
from unidle.fill.policy.windows import UNLIMITED, FillWindow


class DedicatedPool:
    """``devices`` of them, as many pipelines as they make."""

    def __init__(self, model: InferenceModel, devices: int) -> None:
        pp = model.pp
        count = devices // pp
        pipelines = [InferencePipeline(tuple(range(k * pp, (k + 1) * pp)), UNLIMITED) for k in range(count)]
        self._controller = FillController(pipelines, model)
        for device in range(count * pp):
            self._controller.windows(device, [FillWindow(device, 0, NEVER // 4)])

    def serve(self, request: PrefillRequest, now_ns: int) -> int | None:
        """When its first token is made; None if that would be late, or there are no devices."""
        decision = self._controller.decide(request, now_ns)
        if not isinstance(decision, Accepted):
            return None
        self._controller.settle(decision)
        return decision.first_token_ns


def served_alone(model: InferenceModel, devices: int, requests: Iterable[PrefillRequest]) -> list[int]:
    """Nanoseconds to the first token of each request on dedicated devices alone, of those that are in time."""
    pool = DedicatedPool(model, devices)
    ends = [(each, pool.serve(each, each.arrival_ns)) for each in requests]
    return [end - each.arrival_ns for each, end in ends if end is not None]
