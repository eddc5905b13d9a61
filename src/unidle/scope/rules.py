"""The budget's rules: from a stack and a state to a category. First match wins; ``rules.yaml`` holds the shipped ones.

Matching is done once for each distinct stack, state and kind of thread. For that each distinct name of a function, file
and module is compared once with the patterns, which gives a set of them as the bits of a number; a frame's set is the
intersection of its names' sets, a stack's the union of its frames'.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import Final, Literal, get_args

from unidle.scope.model import Frame, FrameKind, State

Category = Literal[
    "checkpoint_io", "collective", "copy", "device_sync", "data", "compute", "python", "cpu_contention", "lock", "idle",
    "other",
]  # fmt: skip
CATEGORIES: Final[tuple[Category, ...]] = get_args(Category)
ThreadKind = Literal["training", "other"]
USER: Final = "<user>"

# The deepest frame of interest lies above these: what they do is done for their caller.
_SERVANTS: Final = re.compile(
    r"(libc|libm|libpthread|librt|ld|ld-linux.*|libstdc\+\+|libgcc_s|libjemalloc|libtcmalloc.*|libmimalloc|"
    r"ld-musl.*|libc\.musl.*)([-.].*)?\Z|\[?(linux-)?vdso.*|linux-vdso.*"
)
_LIBRARY_FILE: Final = re.compile(r".*/(site-packages|dist-packages)/|.*/lib(64)?/python3(\.\d+)?/|<")
_PARAMETERS: Final = re.compile(r"\((?!anonymous namespace\))")
_IN_FILE: Final = re.compile(r"(.*\S) +(<user>|\*|<frozen [^>]*>|\S*/\S*|\S+\.py\*?)\Z")
_CLONE: Final = re.compile(
    r"(\.(cold|part|isra|constprop|lto_priv|llvm)(\.\d+)?)+\Z|@@?[A-Z].*\Z|::h[0-9a-f]{16}\Z"
)


@dataclass(frozen=True, slots=True)
class FramePattern:
    """One frame pattern. Each field is text with ``*``, ``?``, ``|`` and ``!``; an empty one takes anything."""

    function: str = "*"
    file: str = ""
    module: str = ""
    kind: FrameKind | None = None  # None: Python or native
    user: bool = False  # a file that is neither the standard library's nor of an installed package


@dataclass(frozen=True, slots=True)
class Example:
    """A stack that a rule is for."""

    state: State
    stack: tuple[Frame, ...]
    thread: ThreadKind = "training"


@dataclass(frozen=True, slots=True, eq=False)
class StackRule:
    """What a thread does, by its stack: see the head of ``rules.yaml`` for the fields. Each is itself only."""

    name: str
    category: Category
    says: str
    do: str = ""
    state: tuple[State, ...] = ()
    thread: ThreadKind | None = None
    frame: tuple[FramePattern, ...] = ()
    also: tuple[FramePattern, ...] = ()
    leaf: tuple[FramePattern, ...] = ()
    line: tuple[FramePattern, ...] = ()
    wait: tuple[FramePattern, ...] = ()
    unless: tuple[FramePattern, ...] = ()
    waits_for: Literal["threads"] | None = None
    rest: bool = False
    joins: bool = False
    example: Example | None = None
    source: str = "unidle"


UNKNOWN: Final = StackRule("unknown", "other", "runs code that no rule covers")


@dataclass(frozen=True, slots=True)
class _Compiled:
    rule: StackRule
    states: frozenset[str]
    thread: str | None
    frame: int
    also: int
    leaf: int
    line: int
    wait: int
    unless: int


class RuleSet:
    """Rules in their order, ready to be asked. Not for several threads at once: answers are remembered."""

    def __init__(self, rules: Sequence[StackRule]) -> None:
        self.rules: Final = tuple(rules)
        self._fields = _Fields()
        self._compiled = [self._compile(rule) for rule in self.rules]
        self._frames: dict[Frame, int] = {}
        self._fields.finish()

    def of(self, stack: Sequence[Frame], state: State, thread: ThreadKind = "training") -> StackRule:
        """The first rule that takes this stack (root first), or :data:`UNKNOWN`."""
        bits = [self._bits(frame) for frame in stack]
        whole = 0
        for some in bits:
            whole |= some
        return self._first(whole, self._ends(stack, bits), state, thread)

    def of_each(
        self, frames: Sequence[Frame], stacks: Sequence[Sequence[int]], keys: Iterable[tuple[int, State, ThreadKind]]
    ) -> dict[tuple[int, State, ThreadKind], StackRule]:  # fmt: skip
        """The rule of each key (number of a stack, state, kind of thread)."""
        bits = [self._bits(frame) for frame in frames]
        known: dict[int, tuple[int, tuple[int, int, int]]] = {}
        found = {}
        for key in keys:
            number, state, thread = key
            if key in found:
                continue
            if number not in known:
                stack = stacks[number]
                whole = 0
                for n in stack:
                    whole |= bits[n]
                named = [frames[n] for n in stack]
                known[number] = whole, self._ends(named, [bits[n] for n in stack])
            found[key] = self._first(*known[number], state, thread)
        return found

    def _first(self, whole: int, ends: tuple[int, int, int], state: str, thread: str) -> StackRule:
        leaf, line, wait = ends
        for one in self._compiled:
            if (
                (not one.states or state in one.states)
                and (one.thread is None or one.thread == thread)
                and (not one.frame or one.frame & whole)
                and (not one.also or one.also & whole)
                and (not one.leaf or one.leaf & leaf)
                and (not one.line or one.line & line)
                and (not one.wait or one.wait & wait)
                and not one.unless & whole
            ):
                return one.rule
        return UNKNOWN

    def _ends(self, stack: Sequence[Frame], bits: Sequence[int]) -> tuple[int, int, int]:
        """The patterns that match the leaf, the deepest Python frame and what is waited in."""
        at = leaf_of(stack)
        line = next(
            (b for frame, b in zip(reversed(stack), reversed(bits), strict=True) if frame.kind == "python"), 0
        )
        wait = bits[-1] if stack and stack[-1].kind == "wait" else 0
        return 0 if at is None else bits[at], line, wait

    def _bits(self, frame: Frame) -> int:
        bits = self._frames.get(frame)
        if bits is None:
            bits = self._frames[frame] = self._fields.of(frame)
        return bits

    def _compile(self, rule: StackRule) -> _Compiled:
        add = self._fields.add
        return _Compiled(
            rule, frozenset(rule.state), rule.thread, add(rule.frame), add(rule.also), add(rule.leaf),
            add(rule.line), add(rule.wait), add(rule.unless),
        )  # fmt: skip


class _Fields:
    """Every pattern's fields, and for each name the patterns that it satisfies."""

    def __init__(self) -> None:
        self._numbers: dict[FramePattern, int] = {}
        self._kinds: dict[str, int] = {}
        self._texts: dict[str, _Texts] = {}

    def add(self, patterns: Iterable[FramePattern]) -> int:
        bits = 0
        for pattern in patterns:
            bits |= 1 << self._numbers.setdefault(pattern, len(self._numbers))
        return bits

    def finish(self) -> None:
        numbers = self._numbers
        for kind in get_args(FrameKind):
            self._kinds[kind] = sum(1 << n for p, n in numbers.items() if kind in _kinds(p))
        for name in ("function", "file", "module"):
            told = {n: getattr(p, name) for p, n in numbers.items()}
            self._texts[name] = _Texts(
                {n: _anywhere(text) for n, text in told.items()} if name == "file" else told
            )
        self._for_user = sum(1 << n for p, n in numbers.items() if p.user)

    def of(self, frame: Frame) -> int:
        bits = self._kinds[frame.kind]
        bits &= self._texts["function"].of(plain_name(frame), short_name(frame))
        bits &= self._texts["module"].of(frame.module)
        if frame.kind != "python":
            return bits
        bits &= self._texts["file"].of(_rooted(frame.file))
        return bits if is_user_file(frame.file) else bits & ~self._for_user


class _Texts:
    """The patterns of one field, asked by name: plain words by look-up, the rest by regular expressions."""

    def __init__(self, patterns: dict[int, str]) -> None:
        self._any = sum(1 << n for n, text in patterns.items() if text in ("", "*"))
        self._words: dict[str, int] = {}
        self._globs: list[tuple[int, re.Pattern[str], re.Pattern[str] | None]] = []
        self._known: dict[tuple[str, ...], int] = {}
        for number, text in patterns.items():
            if text in ("", "*"):
                continue
            wanted = [part for part in text.split("|") if not part.startswith("!")]
            refused = [part[1:] for part in text.split("|") if part.startswith("!")]
            if not refused and not any(set(part) & set("*?[") for part in wanted):
                for part in wanted:
                    self._words[part] = self._words.get(part, 0) | 1 << number
            else:
                self._globs.append(
                    (1 << number, _one_of(wanted or ["*"]), _one_of(refused) if refused else None)
                )

    def of(self, *names: str) -> int:
        """Patterns that one of the names satisfies, and none of them breaks."""
        bits = self._known.get(names)
        if bits is None:
            bits = self._any
            for name in names:
                bits |= self._words.get(name, 0)
            for bit, wanted, refused in self._globs:
                if any(map(wanted.match, names)) and not (refused and any(map(refused.match, names))):
                    bits |= bit
            self._known[names] = bits
        return bits


def leaf_of(stack: Sequence[Frame]) -> int | None:
    """Where in a stack (root first) the deepest frame of Python or native code is that does more than serve its caller."""
    deepest = None
    for at in range(len(stack) - 1, -1, -1):
        frame = stack[at]
        if frame.kind == "python":
            return at
        if frame.kind == "native":
            deepest = at if deepest is None else deepest
            if frame.module and not _SERVANTS.match(frame.module):
                return at
    return deepest


def is_user_file(file: str) -> bool:
    """Whether a Python file is neither of the standard library nor of an installed package, nor made up (``<string>``)."""
    return bool(file) and not _LIBRARY_FILE.match(file)


def plain_name(frame: Frame) -> str:
    """A native function without its parameters and without what the compiler added to its name."""
    if frame.kind != "native":
        return frame.function
    name = _CLONE.sub("", frame.function)
    cut = _PARAMETERS.search(name, 1)
    return name[: cut.start()] if cut and "operator()" not in name else name


def short_name(frame: Frame) -> str:
    """The last part of a Python function's qualified name; of others the whole name."""
    return frame.function.rpartition(".")[2] if frame.kind == "python" else plain_name(frame)


def pattern_of(text: str) -> FramePattern:
    """A pattern as it is written in the rules: ``function file``, ``function [module]``, ``wait what`` or ``function``.

    Errors: ValueError, with the remedy.
    """
    text = text.strip()
    if not text:
        raise ValueError("name a function, such as save_checkpoint")
    if text.startswith("wait "):
        return FramePattern(function=text[5:].strip(), kind="wait")
    if text.endswith("]") and (cut := text.rfind(" [")) > 0:
        module = text[cut + 2 : -1].strip()
        if not module:
            raise ValueError("name the module in the brackets, such as [libtorch*]")
        if module == "kernel":
            return FramePattern(function=text[:cut].strip(), kind="kernel")
        return FramePattern(function=text[:cut].strip(), module=module, kind="native")
    parts = _IN_FILE.match(text)
    if parts is None:
        return FramePattern(function=text)
    if parts[2] == USER:
        return FramePattern(function=parts[1], kind="python", user=True)
    return FramePattern(function=parts[1], file=parts[2], kind="python")


def frame_of(text: str) -> Frame:
    """A frame of an example, written like a pattern. Errors: ValueError."""
    pattern = pattern_of(text)
    if pattern.kind == "kernel":
        return Frame("kernel", pattern.function, module="kernel")
    if pattern.kind == "wait":
        return Frame("wait", pattern.function)
    if pattern.kind == "native":
        return Frame("native", pattern.function, module=pattern.module)
    if pattern.kind != "python":
        raise ValueError(
            f"{text!r} needs its file or its module: `{text} train.py` or `{text} [libtorch_cpu.so]`"
        )
    return Frame("python", pattern.function, file="train.py" if pattern.user else pattern.file, line=1)


def _kinds(pattern: FramePattern) -> tuple[str, ...]:
    return (pattern.kind,) if pattern.kind else ("python", "native", "kernel")


def _rooted(file: str) -> str:
    """The file with a slash before each part, for ``torch/x.py`` as for ``/a/torch/x.py``."""
    return file if file.startswith(("/", "<")) else f"/{file}"


def _anywhere(files: str) -> str:
    """``train.py`` is that file in any directory."""
    parts = (part.removeprefix("!") for part in files.split("|"))
    rooted = [part if not part or part[0] in "/*<" else f"*/{part}" for part in parts]
    marks = ["!" if part.startswith("!") else "" for part in files.split("|")]
    return "|".join(mark + part for mark, part in zip(marks, rooted, strict=True))


def _one_of(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(one) for one in globs), re.DOTALL)
