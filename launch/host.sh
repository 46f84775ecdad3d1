#!/usr/bin/env bash
# One host of several, called by tpu_vm.sh and gke.yaml on each: runs `experiments.run --distributed` with the arguments
# and keeps its output in run.log. QUIET=1: prints it only where it failed, its last lines with this host's name.
# Ends with the run's code, and with 75 where a signal that `tpu_vm.sh stop` did not send ended it before its last step.
set -uo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")/.." || exit
. launch/venv.sh "${EXTRAS:-tpu,plot,gcs}"
. launch/await.sh
rm -f stop.asked

# Not killed by a connection that is lost; a container's SIGTERM comes to this shell and is handed on.
nohup .venv/bin/python -m experiments.run --distributed "$@" >run.log 2>&1 </dev/null &
pid=$!
echo "$pid" >run.pid
trap 'kill -TERM "$pid"' TERM
[ -n "${QUIET:-}" ] || tail -n +1 -F --pid="$pid" run.log &
tail=$!

code=0
await "$pid" || code=$?
wait "$tail"
rm -f run.pid
if [ "$code" = 0 ] && [ ! -e stop.asked ] && grep -q "to go on, run the same command again" run.log; then
  code=75
  echo "host $(hostname): the run was stopped by a signal and has saved; the same command goes on"
elif [ "$code" != 0 ]; then
  [ -e stop.asked ] && asked=" after it was asked to stop" || asked='' # tpu_vm.sh does not repeat that
  echo "error: host $(hostname) ended with code $code$asked; the last lines of its output:"
  tail -n 20 run.log
fi
exit "$code"
