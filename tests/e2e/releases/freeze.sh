#!/bin/bash
# Freeze the code of a commit as the last version of the wire: tests/e2e/releases/freeze.sh COMMIT, in the repository.
#
# It keeps the code and the data of all rooms but those that neither a controller nor a host needs. The archive is the same
# for the same commit. Run it with the commit of the last release before wire.VERSION is raised.
set -euo pipefail
cd "$(dirname "$0")/../../.."
commit=${1:?usage: $0 COMMIT}
place=$(mktemp -d)
trap 'rm -rf -- "$place"' EXIT
git archive "$commit" src/unidle | tar x -C "$place"
version=$(sed -n 's/^VERSION = //p' "$place/src/unidle/wire.py")
out=$PWD/tests/e2e/releases/wire-$version.tar.xz
cd "$place"
rm -rf src/unidle/{span,tune,fill,drill,control/replay}
find src -type f \( -name '*.py' -o -name '*.toml' -o -name '*.yaml' -o -name py.typed \) | LC_ALL=C sort > files
tar c --mtime=@0 --owner=0 --group=0 --numeric-owner --mode=a=r,u+w --no-recursion -T files | xz -9e > "$out"
stat -c '%n: %s bytes' "$out"
