"""Offsets and numbers in the library against the header of the CUPTI that PyTorch brings."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[2] / "native" / "inject" / "kernels.c"
FIELDS = {"START": "start", "END": "end", "DEVICE": "deviceId", "CONTEXT": "contextId", "STREAM": "streamId", "CORRELATION": "correlationId"}  # fmt: skip
STRUCTS = {
    "KERNEL": [f"CUpti_ActivityKernel{n}" for n in range(4, 12)],
    "COPY": ["CUpti_ActivityMemcpy4", "CUpti_ActivityMemcpy5", "CUpti_ActivityMemcpy6", "CUpti_ActivityMemset3", "CUpti_ActivityMemset4"],
}  # fmt: skip
NUMBERS = {
    "KIND_MEMCPY": "CUPTI_ACTIVITY_KIND_MEMCPY", "KIND_MEMSET": "CUPTI_ACTIVITY_KIND_MEMSET",
    "KIND_KERNEL": "CUPTI_ACTIVITY_KIND_KERNEL", "KIND_CONCURRENT_KERNEL": "CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL",
    "FLUSH_FORCED": "CUPTI_ACTIVITY_FLAG_FLUSH_FORCED",
}  # fmt: skip


def includes() -> list[list[Path]]:
    """Folders with cupti.h, each with those that it needs: of the wheels of CUPTI, and of Triton's copy."""
    found = []
    triton = [Path(place) / "backends/nvidia/include" for place in _places("triton")]
    for place in _places("nvidia"):
        found += [[place / part / "include", *triton] for part in ("cu13", "cuda_cupti")]
    return [folders for folders in (*found, triton) if folders and (folders[0] / "cupti.h").exists()]


def _places(package: str) -> list[Path]:
    spec = find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def ours() -> dict[str, int]:
    return {
        name: int(value) for name, value in re.findall(r"\b([A-Z][A-Z_0-9]+) = (\d+)", SOURCE.read_text())
    }


@pytest.mark.skipif(not includes(), reason="no header of CUPTI is installed with PyTorch")
@pytest.mark.parametrize("folders", includes(), ids=lambda folders: folders[0].parent.name)
def test_offsets_are_those_of_the_header(folders: list[Path], tmp_path: Path) -> None:
    text = "".join(
        (folders[0] / name).read_text() for name in ("cupti_activity.h", "cupti_activity_deprecated.h")
    )
    told, lines = ours(), []
    for prefix, structs in STRUCTS.items():
        for struct in structs:
            if not re.search(rf"^}} {struct};", text, re.MULTILINE):
                continue
            fields = FIELDS | ({"NAME": "name"} if prefix == "KERNEL" else {"BYTES": "bytes"})
            fields |= {"KIND": "copyKind"} if "Memcpy" in struct else {}
            lines += [f'_Static_assert(offsetof({struct}, {field}) == {told[f"{prefix}_{name}"]}, "{struct} {field}");' for name, field in fields.items()]  # fmt: skip
            lines.append(f'_Static_assert(sizeof({struct}) >= {told[f"{prefix}_LEAST"]}, "{struct}");')
    lines += [f'_Static_assert({name} == {told[mine]}, "{name}");' for mine, name in NUMBERS.items()]
    lines += ['_Static_assert(CUPTI_API_VERSION >= 13 && CUPTI_API_VERSION <= 139999, "version");']
    assert len(lines) > 20, "the header has the structures"
    source = tmp_path / "offsets.c"
    source.write_text(
        "#include <stddef.h>\n#include <cuda.h>\n#include <cupti.h>\n" + "\n".join(lines) + "\n"
    )
    options = [option for folder in folders for option in ("-isystem", folder)]
    done = subprocess.run(["cc", "-fsyntax-only", *options, source], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.skipif(not includes(), reason="no header of CUPTI is installed with PyTorch")
def test_the_prototypes_fit_those_of_the_header(tmp_path: Path) -> None:
    """Each call of the library, written out against the header."""
    source = tmp_path / "calls.c"
    source.write_text("""
#include <stddef.h>
#include <cuda.h>
#include <cupti.h>
typedef CUptiResult R;
R (*version)(uint32_t *) = cuptiGetVersion;
R (*text)(CUptiResult, const char **) = cuptiGetResultString;
R (*timestamp)(uint64_t *) = cuptiGetTimestamp;
R (*callbacks)(void (*)(uint8_t **, size_t *, size_t *), void (*)(CUcontext, uint32_t, uint8_t *, size_t, size_t)) = cuptiActivityRegisterCallbacks;
R (*enable)(CUpti_ActivityKind) = cuptiActivityEnable;
R (*next)(uint8_t *, size_t, CUpti_Activity **) = cuptiActivityGetNextRecord;
R (*dropped)(CUcontext, uint32_t, size_t *) = cuptiActivityGetNumDroppedRecords;
R (*flush)(uint32_t) = cuptiActivityFlushAll;
_Static_assert(sizeof(CUptiResult) == 4 && sizeof(CUpti_ActivityKind) == 4 && sizeof(CUcontext) == 8, "sizes");
""")
    options = [option for folder in includes()[0] for option in ("-isystem", folder)]
    done = subprocess.run(
        ["cc", "-Werror", "-fsyntax-only", *options, source], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
