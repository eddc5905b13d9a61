#!/bin/sh
# `box DIRECTORY` copies the box there, for a pod of a job; anything else are arguments of unidle.
set -eu
if [ "${1:-}" = box ] && [ $# -eq 2 ]; then
    exec cp /box.pyz "$2/box.pyz"
fi
exec unidle "$@"
