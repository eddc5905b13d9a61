"""The links between a node's GPUs in a fleet file: the output of a vendor's tool, islands, or a matrix."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path as File
from typing import Annotated, Final

from msgspec import Meta, Struct

from unidle.errors import BadInput
from unidle.files.document import Document, Path
from unidle.files.load import read_text
from unidle.files.values import END, PRINTABLE_PATTERN, PRINTABLE_SAYS
from unidle.fleet import GpuLinks
from unidle.fleet.links import SELF, WORD, WORDS, is_word, parse_topo
from unidle.words import counted

GPUS_LIMIT: Final = 64
_FILE_BYTES: Final = 1 << 20
_ONE: Final = "give one of topo (a file), islands and matrix"

_Index = Annotated[int, Meta(ge=0, le=1_000_000)]
_Word = Annotated[str, Meta(pattern=f"^({WORD}){END}", extra={"says": f"one of {WORDS}"})]
_Line = Annotated[
    str, Meta(pattern=PRINTABLE_PATTERN, max_length=16 * GPUS_LIMIT, extra={"says": PRINTABLE_SAYS})
]


class GpuLinksPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Links between the GPUs of a node. Nodes refer to it by name in ``gpu_links``."""

    topo: Annotated[
        Annotated[_Line, Meta(min_length=1)] | None,
        Meta(
            description="File with the output of `nvidia-smi topo -m` or `npu-smi info -t topo`, relative to the fleet "
            "file.",
            examples=["hgx-h100.txt"],
        ),
    ] = None
    islands: Annotated[
        Annotated[
            tuple[Annotated[tuple[_Index, ...], Meta(min_length=1, max_length=GPUS_LIMIT)], ...],
            Meta(min_length=1, max_length=GPUS_LIMIT),
        ]
        | None,
        Meta(
            description="Groups of GPUs that are connected by link, as indices on the node.",
            examples=[[[0, 1], [2, 3]]],
        ),
    ] = None
    link: Annotated[
        _Word, Meta(description="Type of link between two GPUs of one island.", examples=["NV4"])
    ] = "NV1"
    between: Annotated[
        _Word, Meta(description="Type of link between GPUs of two islands.", examples=["SYS"])
    ] = "SYS"
    matrix: Annotated[
        Annotated[tuple[_Line, ...], Meta(min_length=1, max_length=GPUS_LIMIT)] | None,
        Meta(
            description="One line for each GPU: X for itself, and the type of its link to each other GPU.",
            examples=[["X NV4", "NV4 X"]],
        ),
    ] = None
    gpus: Annotated[
        Annotated[tuple[_Index, ...], Meta(min_length=1, max_length=GPUS_LIMIT)] | None,
        Meta(
            description="Index on the node of the GPU in each line of matrix. Default: 0, 1, ...",
            examples=[[4, 5]],
        ),
    ] = None
    numa: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=4096)] | None, ...],
        Meta(
            max_length=GPUS_LIMIT,
            description="NUMA node of each GPU, in the order of their indices; null: unknown.",
            examples=[[0, 0, 1, 1]],
        ),
    ] = ()
    cpus: Annotated[
        tuple[_Line, ...],
        Meta(
            max_length=GPUS_LIMIT,
            description="CPUs local to each GPU, in the order of their indices.",
            examples=[["0-31", "32-63"]],
        ),
    ] = ()
    nics: Annotated[
        dict[_Line, _Line],
        Meta(
            max_length=64,
            description="For each NIC, the type of its link to each GPU.",
            examples=[{"mlx5_0": "PIX SYS"}],
        ),
    ] = {}


def gpu_links_of(document: Document, parts: Mapping[str, GpuLinksPart], base_dir: str) -> dict[str, GpuLinks]:
    """The links that the file declares, by name. Files are named from ``base_dir``.

    Errors: :class:`BadInput` with the file, the line and the word at fault.
    """
    return {name: _one(document, part, ("gpu_links", name), base_dir) for name, part in parts.items()}


def check_gpu_links(
    document: Document, path: Path, name: str, known: Mapping[str, GpuLinks], gpus: Iterable[int]
) -> None:
    """:class:`BadInput` where a node names links that do not exist, or that are of other GPUs than it has."""
    from unidle.files.fleet_network import unknown

    if not name:
        return
    if name not in known:
        raise unknown(document, name, path, known, "entry in gpu_links")
    has, given = sorted(gpus), sorted(known[name].gpus)
    if has != given:
        raise document.error(
            path, f"{name} has links of GPUs {_list(given)}, and the node has {_list(has)}", value=name,
            remedy="name links of just its GPUs, by their index on the node",
        )  # fmt: skip


def _one(document: Document, part: GpuLinksPart, path: Path, base_dir: str) -> GpuLinks:
    forms = [form for form in ("topo", "islands", "matrix") if getattr(part, form) is not None]
    if len(forms) != 1:
        raise document.error(path, f"it has {' and '.join(forms) or 'nothing'}", remedy=_ONE)
    if part.topo is not None:
        return _from_file(document, part, path, base_dir)
    if part.islands is not None:
        gpus, ways = _from_islands(document, part.islands, part, path)
    else:
        gpus, ways = _from_matrix(document, part.matrix or (), part, path)
    for field, values in (("numa", part.numa), ("cpus", part.cpus)):
        if values and len(values) != len(gpus):
            raise document.error(
                (*path, field),
                f"{counted(len(values), 'entry')} for {counted(len(gpus), 'GPU')}",
                remedy="give one for each GPU",
            )
    nics = {
        nic: _words(document, (*path, "nics", nic), line, len(gpus), own=None)
        for nic, line in part.nics.items()
    }
    return GpuLinks(gpus, ways, part.numa, part.cpus, nics)


def _from_file(document: Document, part: GpuLinksPart, path: Path, base_dir: str) -> GpuLinks:
    if part.numa or part.cpus or part.nics or part.gpus:
        raise document.error(path, "the file of topo has this, too", remedy="leave topo alone")
    file = str(File(base_dir, part.topo or ""))
    try:
        found = parse_topo(read_text(file, what="topology", limit_bytes=_FILE_BYTES, escapes=True), file)
    except BadInput as error:
        raise document.error((*path, "topo"), error.line()) from None
    if len(found.gpus) > GPUS_LIMIT:
        raise document.error(
            (*path, "topo"), f"more than {GPUS_LIMIT} GPUs", remedy="check that it is the right file"
        )
    return found


def _from_islands(
    document: Document, islands: Sequence[Sequence[int]], part: GpuLinksPart, path: Path
) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    if part.gpus:
        raise document.error((*path, "gpus"), "the islands name the GPUs", remedy="remove it")
    island: dict[int, int] = {}
    for k, members in enumerate(islands):
        for at, gpu in enumerate(members):
            if gpu in island:
                raise document.error(
                    (*path, "islands", k, at), "the GPU is in two islands, or twice in one", value=gpu,
                    remedy="name each GPU once",
                )  # fmt: skip
            island[gpu] = k
    if len(island) > GPUS_LIMIT:
        raise document.error((*path, "islands"), f"more than {GPUS_LIMIT} GPUs", remedy="make it smaller")
    gpus = tuple(sorted(island))
    ways = tuple(
        tuple(SELF if a == b else part.link if island[a] == island[b] else part.between for b in gpus)
        for a in gpus
    )
    return gpus, ways


def _from_matrix(
    document: Document, lines: Sequence[str], part: GpuLinksPart, path: Path
) -> tuple[tuple[int, ...], tuple[tuple[str, ...], ...]]:
    gpus = part.gpus or tuple(range(len(lines)))
    if len(gpus) != len(lines) or len(set(gpus)) != len(gpus):
        raise document.error(
            (*path, "gpus"), f"{counted(len(set(gpus)), 'GPU')} for {counted(len(lines), 'line')} of matrix", value=list(gpus),
            remedy="name each line's GPU once",
        )  # fmt: skip
    at = (*path, "matrix")
    ways = tuple(_words(document, (*at, k), line, len(lines), own=k) for k, line in enumerate(lines))
    for k, row in enumerate(ways):
        for i in range(k):
            if row[i] != ways[i][k]:
                raise document.error(
                    (*at, k), f"GPUs {gpus[i]} and {gpus[k]} disagree on their link",
                    value=f"{ways[i][k]} and {row[i]}", remedy="give both the same word",
                )  # fmt: skip
    return gpus, ways


def _words(document: Document, path: Path, line: str, count: int, own: int | None) -> tuple[str, ...]:
    """The words of one line; at ``own`` is the GPU itself."""
    words = tuple(line.split())
    if len(words) != count:
        raise document.error(
            path,
            f"{counted(len(words), 'word')} for {counted(count, 'GPU')}",
            value=line,
            remedy="one word each",
        )
    for k, word in enumerate(words):
        if (word == SELF) != (k == own) or not (word == SELF or is_word(word)):
            raise document.error(
                path, f"not the kind of link to the GPU of column {k + 1}", value=word,
                remedy=f"X for the GPU itself, else {WORDS}",
            )  # fmt: skip
    return words


def gpu_links_as_data(links: Mapping[str, GpuLinks]) -> dict[str, dict[str, object]]:
    """The ``gpu_links`` section that declares these links, as matrices."""
    return {name: dict(_fields(one)) for name, one in links.items()}


def _fields(links: GpuLinks) -> Iterator[tuple[str, object]]:
    if links.gpus != tuple(range(len(links.gpus))):
        yield "gpus", list(links.gpus)
    yield "matrix", [" ".join(row) for row in links.ways]
    if links.numa:
        yield "numa", list(links.numa)
    if links.cpus:
        yield "cpus", list(links.cpus)
    if links.nics:
        yield "nics", {nic: " ".join(row) for nic, row in links.nics.items()}


def _list(gpus: Sequence[int]) -> str:
    """``0-3, 6``; ``none``."""
    runs: list[list[int]] = []
    for gpu in gpus:
        if runs and runs[-1][-1] == gpu - 1:
            runs[-1][1:] = [gpu]
        else:
            runs.append([gpu])
    return ", ".join("-".join(map(str, run)) for run in runs) or "none"
