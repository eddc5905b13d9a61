"""The wheels: what is in them, and that they work in an empty environment of each Python, without the checkout."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

import needs
import unidle

ROOT = Path(__file__).resolve().parents[2]
FETCHED = ROOT / ".cache" / "pythons"  # by scripts/setup.sh tests
UV = Path(sys.prefix) / "bin" / "uv"

pytestmark = [pytest.mark.slow, needs.cargo]


@dataclass(frozen=True, slots=True)
class Wheels:
    pure: Path
    native: Path
    span: Path
    sources: tuple[Path, Path, Path]


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Wheels:
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run([ROOT / "scripts" / "wheels.sh", out], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pure, native, span = sorted(out.glob("*.whl"))
    sources = sorted(out.glob("*.tar.gz"))
    assert sorted(file.name for file in out.glob("*.cdx.json")) == [
        f"unidle-{unidle.__version__}.cdx.json",
        f"unidle_scope-{unidle.__version__}.cdx.json",
        f"unidle_span-{unidle.__version__}.cdx.json",
    ]
    assert all(file.name in done.stderr for file in (pure, native, span, *sources))
    own, scope, apart = sources
    return Wheels(pure, native, span, (own, scope, apart))


def pythons() -> list[tuple[str, str]]:
    """The oldest and the newest that are supported, as far as they are here."""
    own = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = {own: sys.executable}
    for version in ("3.11", "3.13", "3.14"):
        for program in (str(FETCHED / version / "bin" / f"python{version}"), f"python{version}"):
            if version not in found and _runs(program):
                found[version] = program
    return sorted(found.items())


def _runs(program: str) -> bool:
    try:
        return subprocess.run([program, "-c", "import sqlite3, ssl"], capture_output=True).returncode == 0
    except OSError:
        return False


def test_two_wheels_hold_every_file_of_the_package_once_and_no_other(wheels: Wheels) -> None:
    listed = subprocess.run(
        ["git", "ls-files", "src/unidle"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wanted = {name.removeprefix("src/") for name in listed.stdout.split() if (ROOT / name).exists()}
    own, apart = _files_of(wheels.pure), _files_of(wheels.span)
    extra = ("unidle/span/", "unidle/fill/")
    assert not any(name.startswith(extra) for name in own)
    assert all(name.startswith(extra) for name in apart)
    held = own | apart
    assert wanted <= held
    assert {name for name in held - wanted if not (ROOT / "src" / name).exists()} == set()
    assert {"unidle/py.typed", "unidle/scope/rules.yaml", "unidle/page/assets/base.css"} <= held


def _files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_the_native_wheel_serves_every_python_and_names_its_glibc(wheels: Wheels) -> None:
    name, version, python, abi, platform = wheels.native.stem.split("-")
    assert (name, version, python, abi) == ("unidle_scope", unidle.__version__, "cp311", "abi3")
    assert platform.startswith("manylinux_2_")
    with zipfile.ZipFile(wheels.native) as archive:
        files = {Path(name).name for name in archive.namelist()}
        boms = [name for name in archive.namelist() if "/sboms/" in name]
        assert [Path(name).name for name in boms] == [f"unidle_scope-{unidle.__version__}.cdx.json"]
        assert str(ROOT) not in archive.read(boms[0]).decode()
    assert {"py.typed", "__init__.pyi"} <= files
    assert any(name.endswith(".abi3.so") for name in files)


def test_source_archives_hold_what_a_build_needs(wheels: Wheels) -> None:
    held = []
    for source in wheels.sources:
        with tarfile.open(source) as archive:
            held.append({name.partition("/")[2] for name in archive.getnames()})
    assert {"pyproject.toml", "LICENSE", "README.md", "src/unidle/scope/rules.yaml"} <= held[0]
    assert not any(name.startswith(("tests/", "native/", ".")) for name in held[0] if name != ".gitignore")
    assert {
        "pyproject.toml",
        "Cargo.lock",
        "bpf/scope.bpf.o",
        "build.rs",
        "inject/kernels.c",
        "src/lib.rs",
    } <= held[1]
    extra = ("src/unidle/span", "src/unidle/fill")
    assert {"pyproject.toml", "LICENSE", *(f"{name}/__init__.py" for name in extra)} <= held[2]
    assert all(name.startswith(extra) for name in held[2] if "/" in name and name != "src/unidle")


USE = """
import pkgutil, sys, warnings
from importlib import import_module
from pathlib import Path

warnings.filterwarnings("error", module=r"unidle(\\.|$)")

import unidle, unidle_scope


def rank():
    import unidle
    return sys.version_info[:2], str(Path(unidle.__file__).parent)


def spin():
    print("up")
    while True:
        pass


if __name__ == "__main__":
    assert unidle.__version__ == unidle_scope.__version__, unidle_scope.__version__
    missing = set()
    for module in pkgutil.walk_packages(unidle.__path__, "unidle."):
        if not module.name.endswith("__main__") and "migrations" not in module.name:
            try:
                import_module(module.name)
            except ModuleNotFoundError as error:
                missing.add(error.name)
            except unidle.errors.UnidleError as error:  # says which extra is missing
                missing.add(error.__cause__.name)
    extras = {"torch", "psycopg", "libcst", "jinja2", "starlette", "tokenizers", "uvicorn"}
    assert missing <= extras, missing
    job = unidle.run(rank, ranks=2, logs="none")
    assert job.result() == (sys.version_info[:2], str(Path(unidle.__file__).parent)), job.result()
    assert sum(row["ns"] for row in job.ledger(rows="dict")) > 0
    job = unidle.run(spin, wait=False)
    assert next(job.logs(follow=True)) == "up"
    print(job.profile(0.5).data["tier"])
    job.cancel()
    ours = [Path(one).resolve() for one in (sys.prefix, sys.base_prefix, ".")]
    homes = {Path(one.__file__).resolve() for one in list(sys.modules.values()) if getattr(one, "__file__", None)}
    print(*sorted(str(home) for home in homes if not any(home.is_relative_to(one) for one in ours)))
"""


@pytest.mark.parametrize(("version", "python"), pythons(), ids=[version for version, _ in pythons()])
def test_it_works_in_an_empty_environment(wheels: Wheels, version: str, python: str, tmp_path: Path) -> None:
    place, empty = tmp_path / "venv", tmp_path / "empty"
    empty.mkdir()
    _done([UV, "venv", "-q", "--python", python, place], os.environ)
    install = [UV, "pip", "install", "-q", "--python", place / "bin" / "python", "--only-binary", ":all:",
               "--constraint", ROOT / "requirements.lock", f"{wheels.pure}[scope,span]", wheels.native, wheels.span]  # fmt: skip
    _done(install, os.environ)
    clean = {
        "PATH": f"{place}/bin:/usr/bin:/bin",
        "HOME": str(empty),
        "TMPDIR": str(tmp_path),
        "NO_COLOR": "1",
    }

    def run(*command: object) -> str:
        return _done(command, clean, empty)

    run(
        "python",
        "-W",
        "error",
        "-m",
        "compileall",
        "-q",
        "-f",
        place / "lib" / f"python{version}" / "site-packages" / "unidle",
    )
    assert run("unidle", "--version") == f"unidle {unidle.__version__}\n"
    assert "unidle profile" in run("unidle", "profile", "--help")
    said = run("unidle", "run", "--ranks", "2", "--json", "--", "python", "-c", "print('step 1')")
    assert '"state": "succeeded"' in said
    run("unidle", "doctor")
    (empty / "use.py").write_text(USE)
    tier, outside = run("python", "use.py").split("\n")[:2]
    assert tier in ("T0", "T1", "T2")
    assert outside == ""
    assert {file.name for file in empty.iterdir()} <= {".local", ".cache", "use.py"}


def test_without_the_extra_training_across_sites_is_one_clear_error(wheels: Wheels, tmp_path: Path) -> None:
    place = tmp_path / "venv"
    _done([UV, "venv", "-q", "--python", sys.executable, place], os.environ)
    install = [UV, "pip", "install", "-q", "--python", place / "bin" / "python", "--only-binary", ":all:",
               "--constraint", ROOT / "requirements.lock", wheels.pure]  # fmt: skip
    _done(install, os.environ)
    clean = {
        "PATH": f"{place}/bin:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "NO_COLOR": "1",
    }
    for words in (["span"], ["span", "plan", "a.yaml", "--json"], ["schema", "span"]):
        ran = subprocess.run([place / "bin" / "unidle", *words], capture_output=True, text=True, env=clean)
        assert (ran.returncode, ran.stdout) == (3, "")
        assert (
            ran.stderr
            == "unidle: training across data centres is not installed; pip install 'unidle[span]'\n"
        )
    assert "(not installed)" in _done([place / "bin" / "unidle", "--help"], clean)
    assert "unidle span" not in _done([place / "bin" / "unidle", "schema", "job"], clean)
    ran = subprocess.run(
        [place / "bin" / "python", "-c", "import unidle.rank.wan"], capture_output=True, text=True
    )
    assert ran.stderr.endswith("ImportError: unidle.rank.wan is in an extra: pip install 'unidle[span]'\n")


def _done(command: object, env: object, cwd: Path | None = None) -> str:
    ran = subprocess.run(
        [str(word) for word in command],  # type: ignore[attr-defined]
        capture_output=True, text=True, env=dict(env), cwd=cwd, timeout=300,  # type: ignore[call-overload]
    )  # fmt: skip
    assert ran.returncode == 0, f"{command}\n{ran.stdout}\n{ran.stderr}"
    return ran.stdout
