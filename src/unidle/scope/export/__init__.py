"""Files for other tools: one profile, many formats. Each carries the quality of its data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from unidle.scope.export import chrome, folded, html, otlp, perfetto, pprof, speedscope
from unidle.scope.export.encode import json_bytes, uncollected
from unidle.scope.model import Profile


@dataclass(frozen=True, slots=True)
class Format:
    """A form of file. ``write`` takes a profile and makes the file's bytes; its module's ``write`` has more options."""

    name: str
    suffix: str
    write: Callable[[Profile], bytes]
    opens: str  # what reads it
    experimental: bool = False


@uncollected
def _own(profile: Profile) -> bytes:
    return json_bytes(profile.to_json())


FORMATS: Final[dict[str, Format]] = {
    form.name: form
    for form in (
        Format("html", ".html", html.write, "any browser, without a network"),
        Format("speedscope", ".speedscope.json", speedscope.write, "speedscope"),
        Format("pprof", ".pb.gz", pprof.write, "go tool pprof; Pyroscope"),
        Format(
            "folded",
            ".folded",
            folded.write,
            "flamegraph.pl; inferno; speedscope",
        ),
        Format("perfetto", ".pftrace", perfetto.write, "Perfetto"),
        Format("chrome", ".trace.json", chrome.write, "Perfetto; chrome://tracing"),
        Format(
            "otlp",
            ".otlp.pb",
            otlp.write,
            "OpenTelemetry collectors",
            experimental=True,
        ),
        Format("json", ".profile.json", _own, "unidle profile --from"),
    )
}
