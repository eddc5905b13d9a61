#!/usr/bin/env bash
# Every GPU path for real, on a machine with an NVIDIA GPU; docs/how-to/test-gpu.md says what it needs.
#
#   scripts/test-gpu.sh [--json] [--only ROW,..] [--record FILE]
#
# It makes no environment and asks no network: .venv where there is one, else PYTHON or python3. WHEELS names a
# directory of wheels that are taken for this run only. What Python lacks is said, and its rows count as missing.
set -euo pipefail
cd -- "$(dirname -- "$0")/.."
root=$PWD

fail() { printf 'test-gpu: %s\n' "$*" >&2; exit 2; }
usable() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

python=${PYTHON:-}
if [ -n "$python" ]; then
  usable "$python" || fail "PYTHON=$python is no Python 3.11 or newer"
else
  for python in "$root/.venv/bin/python" python3 ''; do
    [ -n "$python" ] || fail "no Python 3.11 or newer; name one by PYTHON=/path/to/python3"
    usable "$python" && break
  done
fi

scratch=$(mktemp -d -t unidle-test-gpu.XXXXXX)
trap 'rm -rf -- "$scratch"' EXIT
site=
if [ -n "${WHEELS:-}" ]; then
  compgen -G "$WHEELS/*.whl" >/dev/null || fail "WHEELS=$WHEELS holds no wheel"
  site=$scratch/site
  "$python" -m pip install -q --disable-pip-version-check --no-index --no-deps --no-compile --target "$site" "$WHEELS"/*.whl ||
    fail "the wheels of $WHEELS do not fit $("$python" -V)"
fi
unset PYTHONHOME
# absolute: ranks run elsewhere
PYTHONPATH="$root/src:$root/bench:$root/scripts${site:+:$site}${PYTHONPATH:+:$PYTHONPATH}"
export PYTHONPATH TMPDIR="${TMPDIR:-/tmp}"
export XDG_DATA_HOME="$scratch/data" # no store, history or log of it in the user's own place
ended=0
"$python" -m gputest "$@" || ended=$?
exit "$ended"
