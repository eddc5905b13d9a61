"""Is the state that a job ended with the same as that of an undisturbed run?"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from unidle.checkpoint.layout import MANIFEST, Damaged
from unidle.errors import CannotRun
from unidle.files.drill import Drill

if TYPE_CHECKING:
    import numpy as np

_TORCH: Final = (".pt", ".pth", ".bin", ".ckpt")
_CONTENT_MOST_BYTES: Final = 64 << 20
_CACHED_MOST: Final = 8
_LEFT_OUT: Final = ("random",)  # a rank's random numbers may be drawn again in another order


@dataclass(frozen=True, slots=True)
class EndStateDifference:
    """``equal``: to the bit, or within the tolerance; ``worst``: the greatest difference of two numbers."""

    equal: bool
    worst: float
    text: str


def compare(ours: Path, theirs: Path, tolerance: float) -> EndStateDifference:
    """Two results: files or checkpoints. Errors: :class:`CannotRun` where one cannot be read."""
    a, b = (dict(_leaves("", read(path))) for path in (ours, theirs))
    if a.keys() != b.keys():
        name = min(a.keys() ^ b.keys())
        return EndStateDifference(False, float("inf"), f"{name or 'the result'} is in one of them only")
    worst, exact = 0.0, True
    for name, value in a.items():
        apart = _apart(value, b[name])
        exact = exact and apart == 0
        worst = max(worst, apart)
        if apart > tolerance:
            return EndStateDifference(
                False,
                apart,
                f"{name or 'the result'} differs" + (f" by {apart:.2g}" if apart < float("inf") else ""),
            )
    return EndStateDifference(True, worst, "equal bit by bit" if exact else f"equal within {worst:.1g}")


def read(path: Path) -> Any:
    """What is in a result, as plain values, arrays and bytes. No code in it is run."""
    try:
        if path.is_dir():
            if (path / MANIFEST).exists():
                return _checkpoint(path)
            return {str(p.relative_to(path)): read(p) for p in sorted(path.rglob("*")) if p.is_file()}
        if path.suffix == ".json":
            return json.loads(path.read_text())
        if path.suffix in (".npz", ".npy"):
            import numpy as np

            found = np.load(path, allow_pickle=False)
            return dict(found) if path.suffix == ".npz" else found
        if path.suffix in _TORCH:
            import torch

            return torch.load(path, map_location="cpu", weights_only=True)
        return hashlib.sha256(path.read_bytes()).digest()
    except (OSError, ValueError, RuntimeError, Damaged, ImportError) as error:
        raise CannotRun(
            f"the result cannot be read: {error}",
            field=str(path),
            remedy="name a file that the job writes (result:)",
        ) from error
    except Exception as error:  # of torch.load, which has no class of its own for all of them
        raise CannotRun(
            f"the result cannot be read safely: {str(error).splitlines()[0]}", field=str(path),
            remedy="save plain values and tensors",
        ) from error  # fmt: skip


def _checkpoint(path: Path) -> dict[str, Any]:
    import torch

    from unidle.rank.checkpoint.reader import stored
    from unidle.rank.checkpoint.state import unpack

    manifest, shards = stored(str(path))
    found: dict[str, Any] = {"step": manifest.step}
    for name, (whole, dtype) in shards.wholes().items():
        tensor = torch.empty(whole, dtype=dtype)
        shards.load_into({name: tensor})
        found[name] = tensor
    for rank in range(shards.world):
        own = unpack(shards.own(rank))
        found[f"rank {rank}"] = {key: value for key, value in own.items() if key not in _LEFT_OUT}
    return found


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), inner)
    elif isinstance(value, list | tuple):
        yield f"{name}[]", len(value)
        for k, inner in enumerate(value):
            yield from _leaves(f"{name}[{k}]", inner)
    else:
        yield name, value


def _apart(a: Any, b: Any) -> float:
    """0 for what is equal, else the greatest difference of two numbers; infinite for what is no number of float64."""
    far = float("inf")
    if type(a) is not type(b):
        return far
    if hasattr(a, "dtype"):
        if a.dtype != b.dtype or a.shape != b.shape:
            return far
        if hasattr(a, "detach"):
            if str(a.dtype) == "torch.bfloat16":  # NumPy has none; exact in float32
                a, b = a.float(), b.float()
            a, b = a.detach().numpy(), b.detach().numpy()
        return _arrays_apart(a, b)
    if isinstance(a, float):
        return 0.0 if a == b or (a != a and b != b) else abs(a - b)
    return 0.0 if a == b else far


def _arrays_apart(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    import numpy as np

    if a.tobytes() == b.tobytes():
        return 0.0
    if a.dtype != np.float64 or not np.array_equal(np.isfinite(a), np.isfinite(b)):
        return float("inf")
    return float(np.max(np.abs(a - b), initial=0.0, where=np.isfinite(a)))


class Cache:
    """Results of undisturbed runs, by the content of the job, in ``directory``; the oldest give way."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def find(self, key: str) -> tuple[Path, float] | None:
        """The result, and how many seconds the run took."""
        place = self._directory / key
        try:
            told = json.loads((place / "run.json").read_text())
            result = place / str(told["name"])
            return (result, float(told["seconds"])) if result.exists() else None
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, key: str, result: Path, seconds: float) -> Path:
        """Take a copy; where that cannot be, the result stays where it is."""
        place = self._directory / key
        try:
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir(parents=True)
            copy = place / result.name
            if result.is_dir():
                shutil.copytree(result, copy)
            else:
                shutil.copyfile(result, copy)
            (place / "run.json").write_text(json.dumps({"name": result.name, "seconds": seconds}))
            for old in sorted(self._directory.iterdir(), key=lambda p: p.stat().st_mtime, reverse=True)[
                _CACHED_MOST:
            ]:
                shutil.rmtree(old, ignore_errors=True)
        except OSError:
            return result
        return copy


def key_of(drill: Drill) -> str:
    """The same for jobs that do the same: their fields, the files in their workdir, the versions of Python's packages."""
    found = hashlib.sha256()
    spec = drill.job
    found.update(msgspec.json.encode([spec, drill.nodes, drill.devices, drill.result]))
    for name in ("unidle", "torch", "numpy"):
        found.update(f"{name} {_version(name)}\n".encode())
    workdir = Path(spec.workdir)
    apart = [Path(p) for p in (spec.checkpoint_path, drill.result and str(workdir / drill.result)) if p]
    size = 0
    for path in sorted(workdir.rglob("*")):
        hidden = any(
            part.startswith(".") or part == "__pycache__" for part in path.relative_to(workdir).parts
        )
        if hidden or not path.is_file() or any(path.is_relative_to(one) for one in apart):
            continue
        state = path.stat()
        size += state.st_size
        found.update(f"{path.relative_to(workdir)}\0{state.st_size}\0".encode())
        if size <= _CONTENT_MOST_BYTES:
            found.update(hashlib.sha256(path.read_bytes()).digest())
        else:
            found.update(str(state.st_mtime_ns).encode())
    return found.hexdigest()[:32]


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""
