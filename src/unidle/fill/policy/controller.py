"""Admission: which inference pipeline prefills a prompt in the waits of training, or that none does. Pure; live and simulated.

On arrival the index gives the pipelines on which the prompt would end first, and the first of them on which all its pieces fit takes
it: in windows only, within the memory that training leaves, before its deadline. A prompt of a higher priority may overtake those
that have not begun, as long as they still keep their deadlines. What is not taken goes to dedicated capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from unidle.fill.model.prefill import InferenceModel, PrefillChunk, chunks_of
from unidle.fill.policy.fit import PromptFit, QueuedPrefill, fit, queued
from unidle.fill.policy.index import WindowIndex
from unidle.fill.policy.line import FillLine, HeldKeys, NextPiece
from unidle.fill.policy.pipelines import InferencePipeline
from unidle.fill.policy.requests import Accepted, Decision, NotPlaced, PrefillRequest
from unidle.fill.policy.windows import UNLIMITED, FillWindow

TRIES = 3


@dataclass(frozen=True, slots=True)
class PieceRules:
    """How a prompt is cut. ``chunk_tokens``: None for whole prompts. ``whole_stage``: all layers of a stage are one piece."""

    chunk_tokens: int | None = 512
    whole_stage: bool = False


class FillController:
    """All inference pipelines of a training job, or of dedicated devices (one window without end on each)."""

    def __init__(
        self, pipelines: Sequence[InferencePipeline], model: InferenceModel, rules: PieceRules | None = None
    ) -> None:
        self.model, self.rules = model, rules or PieceRules()
        self.pipelines = tuple(pipelines)
        self.index = WindowIndex([each.devices for each in pipelines])
        self._lines = [FillLine(each, [0] * len(each.devices)) for each in pipelines]
        pieces = [1] * model.pp if self.rules.whole_stage else list(model.stage_layers)
        self._pieces = pieces
        self._where: dict[int, int] = {}

    def windows(self, device: int, windows: Sequence[FillWindow]) -> None:
        """The windows of a device from now on, as far as they are known. :meth:`replan` follows where work was placed in others."""
        self.index.put(device, windows)

    def decide(self, request: PrefillRequest, now_ns: int) -> Decision:
        """Place a request, or state why no window takes it."""
        if not self._lines:
            return NotPlaced(request, "no inference pipeline fits into the memory that training leaves")
        chunks = self.chunks(request.tokens)
        work = sum([chunk.layer_ns for chunk in chunks]) * self._pieces[0]
        # The last chunk goes through the other stages after that.
        tail = sum(self._pieces[1:]) * chunks[-1].layer_ns + (len(self._pieces) - 1) * chunks[-1].hop_ns
        found = self.index.earliest(work, now_ns, TRIES)
        if not found:
            return NotPlaced(request, "no windows ahead hold it")
        reason, best, item = "no windows ahead hold it", None, self._item(request, chunks)
        for bound, number in found:
            if best is not None and bound + tail >= best[1].first_token_ns:
                break
            limit = UNLIMITED if best is None else best[1].first_token_ns
            tried = self._try(self._lines[number], item, now_ns, limit)
            if isinstance(tried, str):
                reason = tried
            elif best is None or tried.first_token_ns < best[1].first_token_ns:
                best = (number, tried)
        if best is not None and self._in_time(request, best[1].first_token_ns):
            return self._commit(*best, item)
        if best is not None:
            reason = "its first token would be late"
        if request.priority > 0:
            for _, number in found:
                if (ahead := self._overtake(number, request, chunks, now_ns)) is not None:
                    return ahead
        return NotPlaced(request, reason)

    def chunks(self, tokens: int) -> tuple[PrefillChunk, ...]:
        """A prompt as it is cut here; with ``whole_stage`` the time of a chunk's layer is that of a stage."""
        found = chunks_of(self.model, tokens, self.rules.chunk_tokens)
        if not self.rules.whole_stage:
            return found
        most = self.model.stage_layers[0]
        return tuple(PrefillChunk(c.tokens, c.layer_ns * most, c.hop_ns) for c in found)

    def _item(self, request: PrefillRequest, chunks: tuple[PrefillChunk, ...]) -> QueuedPrefill:
        kv = self.model.kv_bytes(request.tokens) + self.model.workspace_bytes(chunks[0].tokens)
        return queued(request, chunks, self._pieces, (kv, self.model.handoff_ns(request.tokens)))

    @staticmethod
    def _in_time(request: PrefillRequest, first_token_ns: int) -> bool:
        return request.deadline_ns is None or first_token_ns <= request.deadline_ns

    def _try(
        self, line: FillLine, item: QueuedPrefill, now_ns: int, limit_ns: int = UNLIMITED
    ) -> PromptFit | str:
        """The fit behind all that is there, or why there is none."""
        room = line.pipeline.resident_bytes
        from_ns, alone = now_ns, item.kv_bytes > room
        if line.held:
            line.held = [each for each in line.held if each.release_ns > now_ns]
            total = sum(each.size_bytes for each in line.held)
            for each in line.held:
                if total + item.kv_bytes <= room and not alone:
                    break
                from_ns, total = max(from_ns, each.release_ns), total - each.size_bytes
        found = fit(self.index, line.pipeline.devices, line.free, item, from_ns, limit_ns)
        if found is None:
            return "no windows ahead hold it"
        if alone and not self._in_one_window(line, item, found):
            return "its keys and values need more memory than training leaves"
        return found

    def _in_one_window(self, line: FillLine, item: QueuedPrefill, found: PromptFit) -> bool:
        """Whether keys and values come and go in windows with more memory than training leaves at its fullest."""
        needed = item.kv_bytes + self.model.weight_bytes()
        release = found.first_token_ns + item.handoff_ns
        for stage, device in enumerate(line.pipeline.devices):
            begin = min(start for at, _, start, _, _ in found.booked if at == stage)
            free = zip(
                self.index.starts[device], self.index.ends[device], self.index.free_bytes[device], strict=True
            )
            if not any(start <= begin and release <= end and needed <= size for start, end, size in free):
                return False
        return True

    def _commit(self, number: int, found: PromptFit, item: QueuedPrefill) -> Accepted:
        line = self._lines[number]
        item.from_ns, item.begin_ns, item.first_token_ns = found.from_ns, found.begin_ns, found.first_token_ns
        line.free = found.free
        line.queue.append(item)
        line.held.append(HeldKeys(item.release_ns, item.kv_bytes, item.request.number))
        self.index.move(number, found.free[0])
        self._where[item.request.number] = number
        return Accepted(
            item.request, number, found.begin_ns, found.first_token_ns, item.release_ns, tuple(found.booked)
        )

    def _overtake(
        self, number: int, request: PrefillRequest, chunks: tuple[PrefillChunk, ...], now_ns: int
    ) -> Accepted | None:
        """Before the first one of a lower priority that has not begun, if all behind it keep their deadlines."""
        line = self._lines[number]
        at = next(
            (k for k, each in enumerate(line.queue) if not each.started and each.request.priority < request.priority),
            None,
        )  # fmt: skip
        if at is None:
            return None
        before = (line.queue, line.free, line.held)
        item = self._item(request, chunks)
        line.queue = [*line.queue[:at], item, *line.queue[at:]]
        late = self.replan(number, now_ns)
        if not late and self._in_time(request, item.first_token_ns):
            self._where[request.number] = number
            return Accepted(request, number, item.begin_ns, item.first_token_ns, item.release_ns, ())
        line.queue, line.free, line.held = before
        self.replan(number, now_ns)
        return None

    def replan(self, number: int, now_ns: int) -> list[PrefillRequest]:
        """Place what a pipeline has left into the windows as they are known now; those whose first token will be late."""
        line, late = self._lines[number], list[PrefillRequest]()
        line.free = [now_ns] * len(line.free)
        again = {each.request.number for each in line.queue}
        line.held = [each for each in line.held if each.number not in again]
        for item in line.queue:
            tried = self._try(line, item, now_ns)
            if isinstance(tried, str):
                late.append(item.request)
                continue
            item.first_token_ns = tried.first_token_ns
            if not item.started:
                item.from_ns, item.begin_ns = tried.from_ns, tried.begin_ns
            line.free = tried.free
            line.held.append(HeldKeys(item.release_ns, item.kv_bytes, item.request.number))
            if not self._in_time(item.request, item.first_token_ns):
                late.append(item.request)
        self.index.move(number, line.free[0])
        return late

    def next_piece(self, pipeline: int, stage: int) -> NextPiece | None:
        """What a device runs next, once its input is there and if the window holds it."""
        return self._lines[pipeline].next_piece(stage)

    def ran(self, pipeline: int, piece: NextPiece, stage: int, count: int, now_ns: int) -> bool:
        """So many pieces were run, the last until ``now_ns``; whether that was the last of the prompt."""
        line = self._lines[pipeline]
        done = line.ran(piece, stage, count, now_ns)
        if done:
            self._where.pop(piece.item.request.number, None)
        return done

    def cancel(self, number: int, now_ns: int) -> QueuedPrefill | None:
        """A request is withdrawn: what it has left is taken out, and those behind it move up. None if it is not here."""
        pipeline = self._where.pop(number, None)
        if pipeline is None:
            return None
        line = self._lines[pipeline]
        item = line.take_out(number)
        self.replan(pipeline, now_ns)
        return item

    def settle(self, decision: Accepted) -> None:
        """It runs as it was placed, on devices that nothing takes away: nothing is left to decide about it."""
        self._where.pop(decision.request.number, None)
        self._lines[decision.pipeline].take_out(decision.request.number)

    def queue(self, pipeline: int) -> tuple[QueuedPrefill, ...]:
        """What a pipeline has left, in order."""
        return tuple(self._lines[pipeline].queue)

    def held_bytes(self, pipeline: int, now_ns: int) -> int:
        """Keys and values on the fullest device of a pipeline, of prompts that are there or planned."""
        return sum(each.size_bytes for each in self._lines[pipeline].held if each.release_ns > now_ns)
