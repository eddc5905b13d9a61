#!/usr/bin/env bash
# A gang that has nothing to do with Python.
set -eu
for step in 1 2 3 4 5 6 7 8; do
  echo "$(date +%T) worker ${RANK} of ${WORLD_SIZE}: step ${step}/8 done"
  sleep 0.02
done
