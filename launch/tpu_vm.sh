#!/usr/bin/env bash
# A TPU VM or pod slice: made, filled with this working tree, run on all of its hosts, given back.
#
#   export TPU_NAME=grpo ZONE=us-east5-b            # PROJECT is gcloud's own default unless set
#   launch/tpu_vm.sh create v5litepod-256           # TPU_VERSION and CREATE_FLAGS (--spot, --network=...) as needed
#   launch/tpu_vm.sh run --config=experiments/gsm8k.py --workdir=/mnt/shared/runs/gsm8k
#   launch/tpu_vm.sh stop                           # SIGTERM: saves, leaves; the same `run` goes on from there
#   launch/tpu_vm.sh ssh                            # a shell on host 0
#   launch/tpu_vm.sh delete
#
# `run` copies what git tracks (and what it would track) to every host, installs it there, and starts the same command
# everywhere. --workdir, the weights and the data must be folders of a disk that all hosts mount, such as Filestore; a
# bucket's name (gs://...) is refused. It prints host 0's output; those of the others are in ~/grpo_jax/run.log on each.
# Needs gcloud, signed in, with the right to make TPUs.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p;}' launch/tpu_vm.sh >&2
  exit 2
}

need() {
  if [ -z "${!1:-}" ]; then
    echo "error: $1 is not set, as in: export $1=$2" >&2
    exit 2
  fi
}

tpu() {
  local verb=$1
  shift
  gcloud compute tpus tpu-vm "$verb" "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"}
}

# The images of TPU VMs may come with an older Python than 3.11.
INSTALL='python3 -c "import sys; sys.exit(sys.version_info < (3, 11))" || python3.12 --version ||
  { sudo add-apt-repository -y ppa:deadsnakes/ppa; sudo apt-get install -y -qq python3.12-venv; }
  bash -c ". launch/venv.sh tpu,plot"'

everywhere() { tpu ssh "$TPU_NAME" --worker=all --command="$1"; }

verb=${1:-}
[ $# -gt 0 ] && shift
case $verb in create | run | stop | ssh | delete) ;; *) usage ;; esac
need TPU_NAME grpo
need ZONE us-east5-b

case $verb in
  create)
    [ $# -eq 1 ] || usage
    # CREATE_FLAGS is several words on purpose.
    # shellcheck disable=SC2086
    tpu create "$TPU_NAME" --accelerator-type="$1" --version="${TPU_VERSION:-tpu-ubuntu2204-base}" ${CREATE_FLAGS:-}
    ;;
  run)
    tree=$(mktemp -d)
    trap 'rm -rf "$tree"' EXIT
    git ls-files -z --cached --others --exclude-standard | tar --null --files-from=- --create --gzip --file="$tree/grpo_jax.tgz"
    tpu scp "$tree/grpo_jax.tgz" "$TPU_NAME:" --worker=all
    everywhere "set -e; mkdir -p grpo_jax; tar xzf grpo_jax.tgz -C grpo_jax; cd grpo_jax; $INSTALL"
    # The arguments are quoted for the remote shell: one may hold spaces or parentheses.
    everywhere "cd grpo_jax; . launch/venv.sh tpu,plot
      .venv/bin/python -m experiments.run --distributed $(printf '%q ' "$@") >run.log 2>&1 &
      pid=\$!; echo \$pid >run.pid
      case \$(hostname) in *-w-0) tail -n +1 -f --pid=\$pid run.log ;; esac
      wait \$pid"
    ;;
  stop) everywhere "kill -TERM \$(cat grpo_jax/run.pid)" ;;
  ssh) tpu ssh "$TPU_NAME" --worker=0 ;;
  delete) tpu delete "$TPU_NAME" "$@" ;;
esac
