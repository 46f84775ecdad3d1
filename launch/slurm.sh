#!/usr/bin/env bash
# A run on the GPUs of a Slurm cluster, from the repository, which all nodes see:
#
#   sbatch --nodes=2 --gpus-per-node=8 --ntasks-per-node=8 --time=4:00:00 launch/slurm.sh \
#     --config=experiments/gsm8k.py:model=qwen3_0.6b --workdir=runs/gsm8k --config.init_from=MODEL \
#     --config.data.path=GSM8K_DIR
#
# One task per GPU, or one per node (--ntasks-per-node=1), which then has all GPUs of its node. Every task sees all GPUs
# of its node: not --gpus-per-task. JAX asks Slurm for the other tasks. Three minutes before the time limit (sbatch
# --signal=B:USR1@600: ten) the run saves and leaves, and the job is queued again with the same command. A cluster that
# preempts by requeueing does the same. The job is also queued again after code 75 (its folder could not be written for a
# while), and where its time was up before the run had begun; not if Slurm has restarted it REPEATS times (20), for any
# reason. `scancel JOB` and any other failure of the program end it for good. --workdir is on a disk that all nodes see;
# the output is grpo_jax-JOB.log. EXTRAS (plot,cuda) names what is installed.
#
#SBATCH --job-name=grpo_jax
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=grpo_jax-%j.log
set -euo pipefail

if [ -z "${SLURM_JOB_ID:-}" ]; then
  echo "error: this is a batch script: sbatch --nodes=... --gpus-per-node=... --ntasks-per-node=... --time=... launch/slurm.sh --config=..." >&2
  exit 2
fi
cd "$SLURM_SUBMIT_DIR" # Slurm runs a copy of this file from elsewhere
if [ ! -e launch/venv.sh ]; then
  echo "error: $SLURM_SUBMIT_DIR: call sbatch from the repository" >&2
  exit 2
fi
. launch/venv.sh "${EXTRAS:-plot,cuda}" # here once, not by every task
. launch/await.sh

# JAX gives each task of Slurm one GPU unless told otherwise.
# Slurm counts tasks only if it was told how many; srun then starts one on each node.
if [ "${SLURM_NTASKS:-${SLURM_NNODES:-1}}" = "${SLURM_NNODES:-1}" ] && [ "${SLURM_GPUS_ON_NODE:-1}" -gt 1 ]; then
  JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
  export JAX_LOCAL_DEVICE_IDS
fi
export SRUN_CPUS_PER_TASK=${SLURM_CPUS_PER_TASK:-} # srun does not ask sbatch for it
[ -n "$SRUN_CPUS_PER_TASK" ] || unset SRUN_CPUS_PER_TASK

requeue='' cancelled='' can_go_on='' step=''
# Before the tasks start: a signal may come at once. srun hands SIGTERM on to all tasks: the run saves and leaves.
trap 'requeue=1; [ -z "$step" ] || kill -TERM "$step"' USR1
trap 'cancelled=1; [ -z "$step" ] || kill -TERM "$step"' TERM
# A task makes this file where it ends with 75. The name is new each time: a node may remember that an old one is gone.
saved=grpo_jax-$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}.saved
srun --kill-on-bad-exit=1 bash launch/slurm_task.sh "$saved" "$@" &
step=$!
[ -z "$requeue$cancelled" ] || kill -TERM "$step"

code=0
await "$step" || code=$?
if [ -e "$saved" ] || [ "$code" = 75 ]; then
  rm -f "$saved"
  can_go_on=1
fi
# 143: SIGTERM came where no run was there yet to save, such as during imports
if [ -n "$requeue" ] && [ "$code" = 143 ]; then
  can_go_on=1
fi
if [ -n "$requeue" ] && [ "$code" = 0 ]; then
  echo "the time is up: queued again, to go on with the same command"
  scontrol requeue "$SLURM_JOB_ID"
elif [ -n "$can_go_on" ] && [ -z "$cancelled" ] && [ "${SLURM_RESTART_COUNT:-0}" -lt "${REPEATS:-20}" ]; then
  echo "the run can go on: queued again, with the same command"
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
