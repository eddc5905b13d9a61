"""JSON that is too large to hold: the keys of the outermost object, and the elements of one array, as they come."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from unidle.errors import BadInput
from unidle.scope.tiers.foreign.source import Stream, damaged

VALUE_LIMIT: Final = 64 << 20

_TOKEN: Final = re.compile(rb'"(?:[^"\\]++|\\(?:.|\Z))*+("|\Z)|[{}\[\]]', re.DOTALL)
_SCALAR: Final = re.compile(rb"[^\s,\]}]+")
_BLANK: Final = re.compile(rb"\s*")
_BETWEEN: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_TAIL: Final = 256 << 10  # where the end of a batch is looked for
_TRIES: Final = 6


class Event(msgspec.Struct):
    """An event of Chrome's trace format. Arguments stay undecoded: most are never read."""

    ph: str = ""
    cat: Any = ""
    name: Any = ""
    pid: Any = None
    tid: Any = None
    ts: Any = None
    dur: Any = 0
    args: msgspec.Raw = msgspec.Raw()


_EVENTS: Final = msgspec.json.Decoder(list[Event])
_EVENT: Final = msgspec.json.Decoder(Event)


class JsonStream:
    """A cursor over a stream of JSON. Raises :class:`BadInput` for what is no JSON or ends too early."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._buffer = b""
        self._at = 0
        self._ended = False
        self.elements = 0

    def peek(self) -> bytes:
        """The next byte that is not blank; nothing at the end."""
        while True:
            self._at = _BLANK.match(self._buffer, self._at).end()  # type: ignore[union-attr]
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._more():
                return b""

    def members(self) -> Iterator[str]:
        """The keys of the object that begins here. The caller reads or skips each value."""
        self._take(b"{")
        if self.peek() == b"}":
            self._take(b"}")
            return
        while True:
            key = self.value()
            if not isinstance(key, str):
                raise damaged(self._stream.name, "a key of its JSON is no text")
            self._take(b":")
            yield key
            if self._take(b",}") == b"}":
                return

    def value(self) -> Any:
        """The value that begins here, decoded."""
        return self._decode(self._raw(), any_value=True)

    def batches(self) -> Iterator[list[Event]]:
        """The events of the array that begins here, some thousands at a time."""
        self._take(b"[")
        if self.peek() == b"]":
            self._take(b"]")
            return
        while True:
            events = self._batch()
            if events:
                self.elements += len(events)
                yield events
                continue
            event = self._decode(self._raw())
            self.elements += 1
            yield [event]
            if self._take(b",]") == b"]":
                return
            self.peek()

    def _batch(self) -> list[Event]:
        """As many whole events as the buffer holds, else none. A wrong cut cannot be decoded, so a guess is safe."""
        if len(self._buffer) - self._at < _TAIL and not self._ended:
            self._more()
        low = max(self._at, len(self._buffer) - _TAIL)
        cuts = [match.start() + 1 for match in _BETWEEN.finditer(self._buffer, low)]
        for cut in reversed(cuts[-_TRIES:]):
            try:
                events = _EVENTS.decode(b"[" + self._buffer[self._at : cut] + b"]")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue
            self._at = cut
            self._take(b",")
            self.peek()
            return events
        return []

    def _raw(self) -> bytes:
        first = self.peek()
        if not first:
            raise self._cut_off()
        if first in b'{["':
            end = self._end_of_nested()
        else:
            while (found := _SCALAR.match(self._buffer, self._at)) and found.end() == len(self._buffer):
                if not self._more():
                    break
            if found is None:
                raise damaged(self._stream.name, f"is no JSON: {first!r} where a value should be")
            end = found.end()
        raw = self._buffer[self._at : end]
        self._at = end
        return raw

    def _end_of_nested(self) -> int:
        depth, at = 0, 0  # relative to self._at, which moves when more is read
        while True:
            for token in _TOKEN.finditer(self._buffer, self._at + at):
                text = token.group()[:1]
                if text == b'"' and token.group(1) != b'"':
                    break
                at = token.end() - self._at
                depth += (text in b"{[") - (text in b"}]")
                if depth == 0:
                    return token.end()
            if len(self._buffer) - self._at > VALUE_LIMIT:
                raise BadInput(
                    f"holds one value of more than {VALUE_LIMIT >> 20} MiB",
                    field=self._stream.name,
                    remedy="give a trace of events",
                )
            if not self._more():
                raise self._cut_off()

    def _decode(self, raw: bytes, *, any_value: bool = False) -> Any:
        try:
            return msgspec.json.decode(raw) if any_value else _EVENT.decode(raw)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            pass
        # Older writers left Infinity, NaN and broken UTF-8 in arguments: what Python's reader takes is taken.
        try:
            told = json.loads(raw.decode(errors="replace"))
            if any_value:
                return told
            told["args"] = json.dumps(told.get("args")).encode()
            return Event(**{key: told[key] for key in Event.__struct_fields__ if key in told})
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            where = f"event {self.elements + 1}" if not any_value else "a value"
            raise damaged(self._stream.name, f"{where} is no JSON: {error}") from None

    def _take(self, wanted: bytes) -> bytes:
        got = self.peek()
        if not got:
            raise self._cut_off()
        if got not in wanted:
            raise damaged(self._stream.name, f"is no JSON: {got!r} after {self.elements} events")
        self._at += 1
        return got

    def _cut_off(self) -> BadInput:
        return damaged(self._stream.name, f"ends in the middle, after {self.elements} whole events")

    def _more(self) -> bool:
        chunk = self._stream.read()
        if not chunk:
            self._ended = True
            return False
        self._buffer = self._buffer[self._at :] + chunk
        self._at = 0
        return True
