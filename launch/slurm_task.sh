#!/usr/bin/env bash
# One task of slurm.sh: runs `experiments.run --distributed` with the arguments but the first, and ends with its code.
# The first is a file, which it makes where that code is 75: the run can go on. srun returns the highest code of all
# tasks, and has killed others as soon as one ended, whose code is then higher.
set -uo pipefail
. launch/await.sh
saved=$1
shift

.venv/bin/python -m experiments.run --distributed "$@" &
pid=$!
trap 'kill -TERM "$pid"' TERM # Slurm may hand it to this shell alone; the run does not mind a second one

code=0
await "$pid" || code=$?
[ "$code" != 75 ] || : >"$saved"
exit "$code"
