#!/bin/bash
# Freeze the code of a commit as the last version of the wire: tests/e2e/releases/freeze.sh COMMIT, as root in the repository.
#
# It keeps the rooms of the wire whole, and of the others each module that the tests of versions import. The archive is the
# same for the same commit and tests. Run it with the commit of the last release before wire.VERSION is raised.
set -euo pipefail
cd "$(dirname "$0")/../../.."
commit=${1:?usage: $0 COMMIT}
place=$(mktemp -d)
trap 'rm -rf -- "$place"' EXIT
git archive "$commit" src/unidle | tar x -C "$place"
version=$(sed -n 's/^VERSION = //p' "$place/src/unidle/wire.py")
UNIDLE_LAST_WIRE=$place/src PYTHONDONTWRITEBYTECODE='' .venv/bin/python -m pytest -q -n0 tests/e2e/test_e2e_versions.py
cd "$place"
{
  find src -name '*.pyc' | sed 's#/__pycache__/\([^.]*\)\..*#/\1.py#'
  find src/unidle/{hub,box,agent,engine/hosts,engine/local/ranks} src/unidle/wire.py -name '*.py'
} | sort -u > files
out=$OLDPWD/tests/e2e/releases/wire-$version.tar.xz
tar c --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=r,u+w --no-recursion -T files | xz -9e > "$out"
stat -c '%n: %s bytes' "$out"
