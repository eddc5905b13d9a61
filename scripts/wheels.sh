#!/usr/bin/env bash
# Builds the wheels and source archives of unidle, of its extra span and of its native part, and a bill of materials (CycloneDX) of each.
#
#   scripts/wheels.sh [FOLDER]    into FOLDER (dist), whose older builds of the same names are replaced
#
# `make setup` comes first. unidle and its extra are pure Python: one wheel of each serves every machine. The native part is built by the Rust
# of this machine; maturin names the oldest glibc that its symbols need (manylinux_2_X) from the built file.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

out=$(realpath -m -- "${1:-dist}")
bin=$PWD/.venv/bin
say() { printf 'wheels: %s\n' "$*" >&2; }
quietly() {  # shows a command's output where it fails
  local said
  said=$("$@" 2>&1) || { printf '%s\n' "$said" >&2; say "this step failed: $*"; exit 1; }
}

command -v cargo >/dev/null || { say "no cargo: the native part cannot be built (https://rustup.rs)"; exit 1; }
version=$("$bin/python" -c 'import unidle; print(unidle.__version__)')
mkdir -p -- "$out"
for name in unidle unidle_span unidle_scope; do rm -f -- "$out/$name"-*.whl "$out/$name"-*.tar.gz "$out/$name"-*.cdx.json; done
own_bom=$out/unidle-$version.cdx.json span_bom=$out/unidle_span-$version.cdx.json native_bom=$out/unidle_scope-$version.cdx.json
quietly "$bin/python" -m hatchling build -d "$out" -t sdist -t wheel
quietly "$bin/python" scripts/sbom.py python "$own_bom"
# a tree of its own, so that its source archive needs nothing from outside
grep -q "^version = \"$version\"$" packaging/span/pyproject.toml || { say "packaging/span/pyproject.toml is not of version $version"; exit 1; }
stage=$(mktemp -d -t unidle-span.XXXXXX)
trap 'rm -rf -- "$stage"' EXIT
mkdir -p -- "$stage/src/unidle"
cp -R -- src/unidle/span src/unidle/fill "$stage/src/unidle"
cp -- packaging/span/pyproject.toml LICENSE "$stage"
(cd "$stage" && quietly "$bin/python" -m hatchling build -d "$out" -t sdist -t wheel)
quietly "$bin/python" scripts/sbom.py span "$span_bom"
quietly "$bin/python" scripts/sbom.py native "$native_bom"
cd native
grep -q "^version = \"$version\"$" Cargo.toml || { say "native/Cargo.toml is not of version $version"; exit 1; }
# the interpreter as `make setup` names it: another name for it would compile all again
quietly env PATH="$bin:$PATH" maturin build --release --locked --interpreter "$bin/python" --sbom-include "$native_bom" --out "$out"
quietly env PATH="$bin:$PATH" maturin sdist --out "$out"
cd "$out"
for file in unidle-"$version"* unidle_span-"$version"* unidle_scope-"$version"*; do
  say "$(du -k -- "$file" | cut -f1) KiB  $out/$file"
done
