"""What the front door counts, as the text that Prometheus reads."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from typing import Final

_BOUNDS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_HELP: Final = {
    "requests_total": ("counter", "Requests by route and outcome."),
    "rejected_total": ("counter", "Requests that were refused, by reason."),
    "spilled_total": (
        "counter",
        "Requests that waited in bubbles too long, and were sent to dedicated devices.",
    ),
    "prompt_tokens_total": ("counter", "Tokens of prompts, by route."),
    "completion_tokens_total": ("counter", "Tokens of answers, by route."),
    "worker_restarts_total": ("counter", "Dedicated workers that ended and were started again."),
    "running": ("gauge", "Requests that are not complete."),
    "waiting": ("gauge", "Requests of these that have not begun."),
    "kv_blocks_used": ("gauge", "Blocks of keys and values in use on dedicated workers."),
    "kv_blocks": ("gauge", "Blocks of keys and values of dedicated workers."),
    "workers": ("gauge", "Workers that are connected, by kind."),
    "cpu_seconds_total": ("counter", "CPU time of the front door and of its dedicated workers."),
    "ttft_seconds": ("histogram", "Time from the arrival of a request to its first token, by route."),
    "tpot_seconds": ("histogram", "Time per token after the first one of a request, by route."),
    "queue_seconds": (
        "histogram",
        "Time from the arrival of a request to the begin of its prefill, by route.",
    ),
}


class _Histogram:
    def __init__(self) -> None:
        self.counts = [0] * (len(_BOUNDS_S) + 1)
        self.sum = 0.0


class Metrics:
    """Counters and histograms by name and labels (label text as Prometheus writes it, such as ``route="bubbles"``)."""

    def __init__(self) -> None:
        self.counters: Counter[tuple[str, str]] = Counter()
        self._histograms: defaultdict[tuple[str, str], _Histogram] = defaultdict(_Histogram)

    def count(self, name: str, labels: str = "", by: float = 1) -> None:
        self.counters[name, labels] += by  # type: ignore[assignment]  # counters are of floats, too

    def observe(self, name: str, labels: str, seconds: float) -> None:
        """A value of a histogram."""
        found = self._histograms[name, labels]
        found.counts[bisect_left(_BOUNDS_S, seconds)] += 1
        found.sum += seconds

    def text(self, now: dict[tuple[str, str], float]) -> str:
        """All values; ``now`` has those of gauges, and of counters that others count."""
        values = {**self.counters, **now}
        lines = list[str]()
        for name, (kind, text) in _HELP.items():
            full = f"unidle_fill_{name}"
            lines += [f"# HELP {full} {text}", f"# TYPE {full} {kind}"]
            if kind == "histogram":
                for (_, labels), found in sorted(
                    item for item in self._histograms.items() if item[0][0] == name
                ):
                    lines += _histogram(full, labels, found)
            else:
                for (own, labels), value in sorted(values.items()):
                    if own == name:
                        lines.append(f"{full}{{{labels}}} {value:g}" if labels else f"{full} {value:g}")
        return "\n".join(lines) + "\n"


def _histogram(full: str, labels: str, found: _Histogram) -> list[str]:
    lines, total = [], 0
    for bound, count in zip((*map(str, _BOUNDS_S), "+Inf"), found.counts, strict=True):
        total += count
        lines.append(f'{full}_bucket{{{labels},le="{bound}"}} {total}')
    return [*lines, f"{full}_sum{{{labels}}} {found.sum:.9g}", f"{full}_count{{{labels}}} {total}"]
