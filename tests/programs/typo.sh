#!/usr/bin/env bash
set -e
echo "preparing"
pyhton train.py --lr 3e-4
