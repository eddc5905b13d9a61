"""Reads the pickle of PyTorch's checkpoint metadata as plain data: no class is looked up, nothing is called.

Only the operations that such a file consists of are known; any other one is refused. No number in the file sets how much
memory is taken: lengths and positions are bounded by the size of the file, and no value is hashed or compared but texts and numbers.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from unidle.checkpoint.safe_open import Damaged


class Record:
    """An object of any class: the fields that the pickle gives it."""

    __slots__ = ("fields",)

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}


class Pairs:
    """A dictionary whose keys may be of any kind."""

    __slots__ = ("pairs",)

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []


_MARK: Final = object()
_LENGTHS: Final = {
    1: struct.Struct("<B"),
    2: struct.Struct("<H"),
    4: struct.Struct("<I"),
    8: struct.Struct("<Q"),
}
_INT: Final = struct.Struct("<i")
_FLOAT: Final = struct.Struct(">d")
_LONG_MOST_BYTES: Final = 16


def read(data: bytes) -> Any:
    """The value of a pickle: :class:`Record`, :class:`Pairs`, lists, tuples, texts, numbers. Raises :class:`Damaged`."""
    try:
        return _Machine(data).run()
    except (IndexError, struct.error, UnicodeDecodeError, AttributeError, TypeError, KeyError):
        raise Damaged("is not a whole pickle") from None


class _Machine:
    """One pass over the operations, with a stack and a memo."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}

    def run(self) -> Any:
        data, known = self._data, _KNOWN
        while True:
            code = data[self._at]
            self._at += 1
            if code == 0x2E:  # stop
                return self._stack.pop()
            do = known.get(code)
            if do is None:
                raise Damaged(f"has the operation {bytes([code])!r}, which PyTorch does not write")
            do(self)

    # ---- what operations read

    def _bytes(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise Damaged(f"has a length of {count} bytes at byte {self._at}; the file ends before")
        self._at += count
        return self._data[self._at - count : self._at]

    def _number(self, size: int) -> int:
        found: int = _LENGTHS[size].unpack_from(self._data, self._at)[0]
        self._at += size
        return found

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at)
        if end < 0:
            raise Damaged("is not a whole pickle")
        found = self._data[self._at : end]
        self._at = end + 1
        return found.decode("utf-8", errors="replace")

    def _marked(self) -> list[Any]:
        stack = self._stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise Damaged("is not a whole pickle")
        found = stack[at + 1 :]
        del stack[at:]
        return found

    # ---- operations

    def push(self, value: Any) -> None:
        self._stack.append(value)

    def text(self, size: int) -> None:
        self._stack.append(self._bytes(self._number(size)).decode("utf-8", errors="surrogatepass"))

    def octets(self, size: int) -> None:
        self._stack.append(self._bytes(self._number(size)))

    def whole(self, size: int) -> None:
        self._stack.append(self._number(size))

    def signed(self) -> None:
        self._stack.append(_INT.unpack_from(self._data, self._at)[0])
        self._at += 4

    def long(self) -> None:
        length = self._number(1)
        if length > _LONG_MOST_BYTES:
            raise Damaged(f"has a number of {length} bytes")
        self._stack.append(int.from_bytes(self._bytes(length), "little", signed=True))

    def float(self) -> None:
        self._stack.append(_FLOAT.unpack_from(self._data, self._at)[0])
        self._at += 8

    def skip(self, count: int) -> None:
        self._bytes(count)

    def name(self) -> None:
        """A class by two lines, or by two texts: which one does not matter."""
        self._line()
        self._line()
        self._stack.append(None)

    def stacked_name(self) -> None:
        del self._stack[-2:]
        self._stack.append(None)

    def made(self) -> None:
        """An object of a class and its arguments."""
        del self._stack[-2:]
        self._stack.append(Record())

    def build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        for part in state if isinstance(state, tuple) else (state,):
            if isinstance(part, Pairs) and isinstance(target, Record):
                target.fields.update((key, value) for key, value in part.pairs if isinstance(key, str))

    def tuple(self, count: int) -> None:
        found = tuple(self._stack[-count:]) if count else ()
        if len(found) != count:
            raise Damaged("is not a whole pickle")
        if count:
            del self._stack[-count:]
        self._stack.append(found)

    def marked_tuple(self) -> None:
        self._stack.append(tuple(self._marked()))

    def append(self) -> None:
        value = self._stack.pop()
        self._list().append(value)

    def appends(self) -> None:
        values = self._marked()
        self._list().extend(values)

    def _list(self) -> list[Any]:
        found = self._stack[-1]
        if isinstance(found, Record):
            return []  # of a class of its own
        if not isinstance(found, list):
            raise Damaged("is not a whole pickle")
        return found

    def put_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._pairs().append((key, value))

    def put_items(self) -> None:
        values = self._marked()
        self._pairs().extend(zip(values[::2], values[1::2], strict=False))

    def _pairs(self) -> list[Any]:
        found = self._stack[-1]
        if isinstance(found, Record):
            return []
        pairs: list[Any] = found.pairs
        return pairs

    def remember(self) -> None:
        self._memo[len(self._memo)] = self._stack[-1]

    def put(self, size: int) -> None:
        self._memo[self._number(size)] = self._stack[-1]

    def get(self, size: int) -> None:
        self._stack.append(self._memo[self._number(size)])


def _one(name: str, *arguments: Any) -> Callable[[_Machine], None]:
    do = getattr(_Machine, name)
    return lambda machine: do(machine, *arguments)


_KNOWN: Final[dict[int, Callable[[_Machine], None]]] = {
    code[0]: do
    for code, do in {
        b"\x80": _one("skip", 1), b"\x95": _one("skip", 8), b"(": lambda m: m.push(_MARK),
        b"N": lambda m: m.push(None), b"\x88": lambda m: m.push(True), b"\x89": lambda m: m.push(False),
        b"}": lambda m: m.push(Pairs()), b"]": lambda m: m.push([]),
        b"\x8c": _one("text", 1), b"X": _one("text", 4), b"\x8d": _one("text", 8),
        b"C": _one("octets", 1), b"B": _one("octets", 4), b"\x8e": _one("octets", 8),
        b"K": _one("whole", 1), b"M": _one("whole", 2), b"J": _Machine.signed, b"\x8a": _Machine.long, b"G": _Machine.float,
        b")": _one("tuple", 0), b"\x85": _one("tuple", 1), b"\x86": _one("tuple", 2), b"\x87": _one("tuple", 3),
        b"t": _Machine.marked_tuple, b"a": _Machine.append, b"e": _Machine.appends, b"s": _Machine.put_item,
        b"u": _Machine.put_items, b"c": _Machine.name, b"\x93": _Machine.stacked_name, b"\x81": _Machine.made,
        b"R": _Machine.made, b"b": _Machine.build, b"\x94": _Machine.remember, b"q": _one("put", 1),
        b"r": _one("put", 4), b"h": _one("get", 1), b"j": _one("get", 4),
    }.items()
}  # fmt: skip
