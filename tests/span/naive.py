"""The same simulation, written as plainly as can be: one step at a time, whichever device may go first.

It reads a program's decisions and nothing else of the engine: times, links and turns are worked out again.
"""

from __future__ import annotations

from unidle.span.model.setting import Setting
from unidle.span.simulate.program import Program


def iteration_ns(setting: Setting, program: Program) -> int:
    """The end of the last operation, all-reduce included."""
    world = _World(setting, program)
    while world.step():
        pass
    assert all(at == 2 * program.units for at in world.at.values())
    best = 0
    for s, stage in enumerate(setting.stages):
        n, local = setting.pipelines, setting.local
        ring = 0 if local is None else round(2 * (n - 1) * stage.gradient_bytes // n * 8 / local)
        end = max(world.free[c, s] + len(world.late[c, s]) * stage.weight_ns for c in range(setting.cell))
        best = max(best, end + ring)
    return best


class _World:
    def __init__(self, setting: Setting, program: Program) -> None:
        self.setting, self.program = setting, program
        spots = [(c, s) for c in range(setting.cell) for s in range(len(setting.stages))]
        self.at = dict.fromkeys(spots, 0)
        self.free = dict.fromkeys(spots, 0)
        self.late: dict[tuple[int, int], list[int]] = {spot: [] for spot in spots}
        self.made: dict[tuple[str, int, int, int], int] = {}  # F or B, pipeline, virtual stage, microbatch
        self.there: dict[tuple[str, int, int, int], int] = {}
        self.wires: dict[tuple[object, ...], int] = {}
        self.turn: dict[tuple[int, int], int] = {}

    def cut(self, whole: int, chunk: int) -> int:
        n = self.program.chunks
        return (chunk + 1) * whole // n - chunk * whole // n

    def step(self) -> bool:
        moved = any(self.compute(c, s) for c, s in self.at)
        return any(self.transfer(*key) for key in sorted(set(self.made) - set(self.there))) or moved

    def compute(self, c: int, s: int) -> bool:
        setting, program = self.setting, self.program
        units, m, last = program.units, setting.microbatches, len(setting.stages) * program.chunks - 1
        k = self.at[c, s]
        if k == 2 * units:
            return False
        code = int(program.order[s, k])
        unit = code % units
        chunk, microbatch = divmod(unit, m)
        virtual, stage = chunk * len(setting.stages) + s, setting.stages[s]
        weight = self.cut(stage.weight_ns, chunk)
        need = self.needed(code >= units, c, virtual, microbatch, last)
        if need is None:
            return False
        again = self.cut(stage.recompute_ns, chunk) if code >= units and program.again[s, unit] else 0
        now = self.free[c, s]
        if program.filler:
            gap = need - now - (again if program.early else 0)
            while self.late[c, s] and gap > 0 and gap + int(program.filler.slack_ns[s]) >= weight:
                self.late[c, s].pop()
                now, gap = now + weight, gap - weight
                if gap + int(program.filler.slack_ns[s]) < weight:
                    break
        begin = max(need, now + again) if program.early else max(need, now) + again
        if code < units:
            self.free[c, s] = begin + self.cut(stage.forward_ns, chunk)
            self.made["F", c, virtual, microbatch] = self.free[c, s]
        else:
            end = begin + self.cut(stage.backward_ns, chunk)
            if program.filler:
                self.late[c, s].append(unit)
                self.free[c, s] = end
                if len(self.late[c, s]) > program.filler.most[s]:
                    self.late[c, s].pop()
                    self.free[c, s] += weight
            elif program.joined:
                end += weight
                self.free[c, s] = end
            else:
                self.free[c, s] = end
            self.made["B", c, virtual, microbatch] = end
        if not program.filler and not program.joined:
            self.free[c, s] += int(program.weights_after[s, k]) * weight
        self.at[c, s] += 1
        return True

    def needed(self, backward: bool, c: int, virtual: int, microbatch: int, last: int) -> int | None:
        """When its input is there, None where that is not known yet."""
        if not backward:
            return 0 if virtual == 0 else self.there.get(("F", c, virtual - 1, microbatch))
        if virtual == last:
            return self.made.get(("F", c, virtual, microbatch))
        return self.there.get(("B", c, virtual + 1, microbatch))

    def transfer(self, of: str, c: int, virtual: int, microbatch: int) -> bool:
        setting, program = self.setting, self.program
        stages = len(setting.stages)
        s, other = virtual % stages, virtual + (1 if of == "F" else -1)
        if not 0 <= other < stages * program.chunks:
            self.there[of, c, virtual, microbatch] = -1
            return True
        to, made = other % stages, self.made[of, c, virtual, microbatch]
        size = self.size(s, to)
        path = setting.path(s, to)
        if not self._next(of, c, virtual, microbatch):
            return False
        wire, key = self.wires, (of, c, virtual, microbatch)
        if path is None:
            length = 0 if setting.local is None or s == to else round(size * 8 / setting.local)
            self.there[key] = wire[c, s, to] = max(made, wire.get((c, s, to), 0)) + length
            return True
        rate = path.rate_gbps(1 if setting.one_flow and not program.max_flows else None)
        sites = setting.sites[setting.site_of[s]].stages, setting.sites[setting.site_of[to]].stages
        width = setting.cell * (min(sites) if program.share.wide else 1)
        if program.share.how == "own" or width == 1:
            wire[c, s, to] = max(made, wire.get((c, s, to), 0)) + round(size * 8 / rate)
            self.there[key] = wire[c, s, to] + path.latency_ns
            return True
        count = min(program.share.pieces, max(size, 1))
        for k in range(count):
            piece = (k + 1) * size // count - k * size // count
            local = 0 if setting.local is None else round((piece - piece // width) * 8 / setting.local)
            out = wire["out", c, s, to] = max(made, wire.get(("out", c, s, to), 0)) + local
            sent = wire["all", s, to] = max(out, wire.get(("all", s, to), 0)) + round(
                -(-piece // width) * 8 / rate
            )
            entry = max(sent + path.latency_ns, wire.get(("in", c, s, to), 0)) + local
            wire["in", c, s, to] = entry
        self.there[key] = wire["in", c, s, to]
        return True

    def size(self, s: int, to: int) -> int:
        """What enters the later of two neighbours; around the ends the most that enters any but the first."""
        setting = self.setting
        enters = [setting.input_bytes if x.input_bytes is None else x.input_bytes for x in setting.stages]
        return enters[max(s, to)] if abs(s - to) == 1 else max(enters[1:] or enters)

    def _next(self, of: str, c: int, virtual: int, microbatch: int) -> bool:
        """Whether everything before it on its wires has passed."""
        program, stages = self.program, len(self.setting.stages)
        s, other = virtual % stages, virtual + (1 if of == "F" else -1)
        shared = self.setting.path(s, other % stages) is not None and program.share.how == "turns"
        to, m = other % stages, self.setting.microbatches
        for code in program.order[s].tolist():
            kind, (chunk, which) = "FB"[code // program.units], divmod(code % program.units, m)
            here = chunk * stages + s
            goes = here + (1 if kind == "F" else -1)
            if not 0 <= goes < stages * program.chunks or goes % stages != to or (shared and kind != of):
                continue
            turns = range(self.setting.cell) if shared and self.setting.cell > 1 else (c,)
            for pipeline in turns:
                if (kind, pipeline, here, which) == (of, c, virtual, microbatch):
                    return True
                if (kind, pipeline, here, which) not in self.there:
                    return False
        return True
