#!/usr/bin/env bash
# A TPU pod slice, or several: asked for, filled with this working tree, run on all of its hosts, given back.
#
#   export TPU_NAME=grpo ZONE=us-east5-b TPU_TYPE=v5litepod-256    # PROJECT is gcloud's own default unless set
#   export CREATE_FLAGS=--spot SLICES=4         # as needed; SLICES as --node-count, and as --config.mesh.replica of the
#                                               # run; RUNTIME_VERSION is by type unless set
#   launch/tpu_vm.sh run --config=experiments/gsm8k.py --workdir=gs://bucket/runs/gsm8k --config.mesh.replica=4 \
#     --config.init_from=gs://bucket/MODEL --config.data.path=gs://bucket/gsm8k
#   launch/tpu_vm.sh logs 1.3 -f                # slice 1, host 3 (0: host 0 of slice 0); further words go to `tail`
#   launch/tpu_vm.sh stop                       # SIGTERM: saves, leaves; the same `run` goes on from there
#   launch/tpu_vm.sh fetch gs://bucket/runs/gsm8k runs/gsm8k
#   launch/tpu_vm.sh ssh                        # a shell on host 0, or on the host that is named as for logs
#   launch/tpu_vm.sh delete
#
# `create` asks for the slices in the queue and waits until they are there, with a line for each state; `state` says it
# once. `run` does so first where there are none. It then copies what git tracks (and what it would track) to every host,
# installs it, starts the same command everywhere and prints host 0's output. Preempted (or otherwise taken) slices are
# asked for again and run the same command, which goes on from its checkpoint. So does a run that says it can go on
# (code 75: the folder or bucket could not be written, or a signal came), at most REPEATS times between two preemptions.
# What `stop` ended is not repeated, nor is any other failure of the program: that ends the command with the name of the
# host and the last lines it wrote. An interrupted `run` leaves the hosts at work.
# --workdir, the weights and the data are in a bucket (gs://...) or on a disk that all hosts mount. MORE_EXTRAS=math,wandb
# installs these extras of pyproject.toml, too.
# `launch/tpu_vm.sh --dry-run VERB ...` prints the commands and runs none. Needs gcloud, signed in, otherwise.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")/.."

POLL_SECONDS=${POLL_SECONDS:-20}      # between two looks at the state
SETTLE_SECONDS=${SETTLE_SECONDS:-120} # after a failure, until preemption must have shown in the state
GRACE_SECONDS=${GRACE_SECONDS:-90}    # for the other hosts to end, once one has failed
REPEATS=${REPEATS:-20}                # of a command that can go on (code 75), between two preemptions
SLICES=${SLICES:-1}
THEIR_EXTRAS=tpu,plot,gcs${MORE_EXTRAS:+,$MORE_EXTRAS} # not EXTRAS, which may be this machine's
if [[ ! $THEIR_EXTRAS =~ ^[a-z,]+$ ]]; then
  echo "error: MORE_EXTRAS=$MORE_EXTRAS: use names of extras with commas between them, as in MORE_EXTRAS=math,wandb" >&2
  exit 2
fi
DRY_RUN=
SEEN= # whether gcloud has told a state
if [ "${1:-}" = --dry-run ]; then
  DRY_RUN=1
  shift
fi
exec 3>&1 # commands of --dry-run, also where output is captured

usage() {
  sed -n '2,/^set /{s/^# \{0,1\}//;/^set /!p;}' launch/tpu_vm.sh >&2
  exit 2
}

fail() {
  echo "error: $1" >&2
  exit "${2:-2}"
}

need() { [ -n "${!1:-}" ] || fail "$1 is not set, as in: export $1=$2"; }

say() { echo "$(date +%H:%M:%S) $*"; }

# Runs a command, or prints it.
call() {
  if [ -z "$DRY_RUN" ]; then
    "$@"
  else
    printf '%q ' "$@" >&3
    echo >&3
  fi
}

queued() {
  local verb=$1
  shift
  call gcloud compute tpus queued-resources "$verb" "$TPU_NAME" "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"}
}

vm() {
  local verb=$1
  shift
  call gcloud compute tpus tpu-vm "$verb" "$@" --zone="$ZONE" ${PROJECT:+--project="$PROJECT"}
}

# The name of a slice, from 0.
node() { if [ "$SLICES" = 1 ]; then echo "$TPU_NAME"; else echo "$TPU_NAME-$1"; fi; }

# The queued resource's state; GONE where there is none. --dry-run: the state that lets the other commands be shown.
state() {
  local found
  if [ -n "$DRY_RUN" ]; then
    queued describe --format='value(state.state)'
    echo "${1:-ACTIVE}"
  elif found=$(queued describe --format='value(state.state)' 2>"$TMP/error"); then
    echo "${found##*=}"
  elif grep -qi "not.found" "$TMP/error"; then
    echo GONE
  else
    cat "$TMP/error" >&2
    echo UNKNOWN
  fi
}

# Whether every slice is there, as far as is known: a preempted one says so before its queued resource does.
ready() {
  local i
  case $(state) in ACTIVE | UNKNOWN) ;; *) return 1 ;; esac
  for ((i = 0; i < SLICES; i++)); do
    case $(vm describe "$(node "$i")" --format='value(state)' 2>/dev/null) in READY | '') ;; *) return 1 ;; esac
  done
}

runtime_version() {
  case $TPU_TYPE in
    v5lite* | v5e*) echo v2-alpha-tpuv5-lite ;;
    v5p*) echo v2-alpha-tpuv5 ;;
    v6e*) echo v2-alpha-tpuv6e ;;
    *) echo tpu-ubuntu2204-base ;;
  esac
}

ask() {
  need TPU_TYPE v5litepod-256
  local nodes=(--node-id="$TPU_NAME")
  [ "$SLICES" = 1 ] || nodes=(--node-count="$SLICES" --node-prefix="$TPU_NAME")
  # CREATE_FLAGS is several words on purpose.
  # shellcheck disable=SC2086
  queued create "${nodes[@]}" --accelerator-type="$TPU_TYPE" \
    --runtime-version="${RUNTIME_VERSION:-$(runtime_version)}" ${CREATE_FLAGS:-}
}

# Has all slices there: asks for them where there are none, or where they were taken, and waits.
create() {
  local now before=
  now=$(state GONE)
  if [ "$now" = ACTIVE ] && ! ready; then now=SUSPENDED; fi
  case $now in
    GONE) ask ;;
    UNKNOWN) [ -n "$SEEN" ] || fail "the state of $TPU_NAME could not be asked for; see the error of gcloud above" 1 ;;
    SUSPENDING | SUSPENDED | FAILED)
      say "$TPU_NAME: $now; asking for it again"
      queued delete --force --quiet
      ask
      ;;
  esac
  SEEN=1 # from here on a question without an answer may be a fault of the network
  while now=$(state); do
    [ "$now" = "$before" ] || say "$TPU_NAME: $now"
    before=$now
    case $now in
      ACTIVE) return ;;
      FAILED | GONE | SUSPENDED) fail "$TPU_NAME is $now and was not given; see: launch/tpu_vm.sh state" 1 ;;
    esac
    sleep "$POLL_SECONDS"
  done
}

# Runs a command on all hosts of all slices. @SLICE@ in it is the slice's number.
everywhere() {
  local i pid code=0 pids=()
  if [ "$SLICES" = 1 ]; then
    vm ssh "$TPU_NAME" --worker=all --command="${1//@SLICE@/0}"
    return
  fi
  for ((i = 0; i < SLICES; i++)); do
    vm ssh "$(node "$i")" --worker=all --command="${1//@SLICE@/$i}" &
    pids+=($!)
    [ -z "$DRY_RUN" ] || wait $! # one line after the other
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  return "$code"
}

# A command on one host, SLICE.HOST or HOST.
on_host() {
  local host=$1 slice=0
  shift
  [[ $host =~ ^([0-9]+\.)?[0-9]+$ ]] || fail "host $host: use HOST or SLICE.HOST, counted from 0, as in 3 or 1.3"
  [[ $host != *.* ]] || slice=${host%.*}
  vm ssh "$(node "$slice")" --worker="${host#*.}" "$@"
}

# For the remote shell. Deletes Python files that an earlier call sent and this one does not: such a module could still
# be imported.
# shellcheck disable=SC2016
UNPACK='mkdir -p grpo_jax
  tar --quoting-style=literal -tzf grpo_jax.tgz | grep "\.py$" | LC_ALL=C sort >grpo_jax/.sent.new
  [ ! -e grpo_jax/.sent ] || LC_ALL=C comm -23 grpo_jax/.sent grpo_jax/.sent.new |
    (cd grpo_jax; tr "\n" "\0" | xargs -0 rm -f --)
  tar xzf grpo_jax.tgz -C grpo_jax; mv grpo_jax/.sent.new grpo_jax/.sent'

# The images of TPU VMs may come with an older Python than 3.11.
# shellcheck disable=SC2016
INSTALL='set -e
  if grep -qs experiments.run "/proc/$(cat grpo_jax/run.pid 2>/dev/null)/cmdline"; then
    echo "error: host $(hostname): a run is at work; launch/tpu_vm.sh logs shows it, launch/tpu_vm.sh stop ends it"
    exit 2
  fi
  '"$UNPACK"'
  cd grpo_jax
  python3 -c "import sys; sys.exit(sys.version_info < (3, 11))" || python3.12 --version ||
  { sudo add-apt-repository -y ppa:deadsnakes/ppa; sudo apt-get install -y -qq python3.12-venv; }
  bash -c ". launch/venv.sh '"$THEIR_EXTRAS"'"'

install() {
  local i
  # shellcheck disable=SC2016
  call bash -c 'git ls-files -z --cached --others --exclude-standard |
    tar --null --files-from=- --create --gzip --file="$0"' "$TMP/grpo_jax.tgz"
  for ((i = 0; i < SLICES; i++)); do vm scp "$TMP/grpo_jax.tgz" "$(node "$i"):" --worker=all || return; done
  everywhere "$INSTALL"
}

# The value of --workdir among the arguments.
workdir_of() {
  while [ $# -gt 0 ]; do
    case $1 in
      --workdir=*) echo "${1#*=}" ;;
      --workdir) echo "${2:-}" ;;
    esac
    shift
  done
}

# Refuses a folder that host 0 makes and another host does not see.
check_workdir() {
  local folder mark
  [[ $1 != gs://* ]] || return 0
  folder=$(printf %q "$1")
  mark=$folder/.seen-by-all-hosts-$$
  on_host 0 --command="cd grpo_jax && mkdir -p $folder && touch $mark" || return
  if everywhere "cd grpo_jax; ls $folder >/dev/null 2>&1; test -e $mark ||
    { echo \"host \$(hostname) does not see the $folder of host 0\"; exit 1; }"; then
    on_host 0 --command="cd grpo_jax; rm $mark"
    return
  fi
  echo "error: --workdir=$1: not every host sees it; use a bucket (gs://...) or a folder of a disk that all mount" >&2
  return 2
}

# Runs the command on all hosts; returns the code of one that failed, and then the others get GRACE_SECONDS to end.
start() {
  local line watch='' command
  # The arguments are quoted for the remote shell: one may hold spaces or parentheses.
  command="cd grpo_jax
    case @SLICE@/\$(hostname) in 0/*-w-0) export QUIET= ;; *) export QUIET=1 ;; esac
    EXTRAS=$THEIR_EXTRAS bash launch/host.sh $(printf '%q ' "$@")"
  if [ -n "$DRY_RUN" ]; then
    everywhere "$command"
    return
  fi
  {
    everywhere "$command" 2>&1 && echo 0 >"$TMP/code" || echo $? >"$TMP/code"
  } | {
    while IFS= read -r line; do
      printf '%s\n' "$line"
      # gcloud gives the code of one host: one that has saved makes the others end with codes of their own.
      case $line in
        "error: host "*" ended with code 75;"* | "host "*": the run was stopped by a signal and has saved;"*) : >"$TMP/saved" ;;
      esac
      if [[ $line == "error: host "* && -z $watch ]]; then
        end_others >"$TMP/killed" 2>&1 &
        watch=$!
      fi
    done
    [ -z "$watch" ] || wait "$watch" || true # it must not kill what is started next
  }
  return "$(cat "$TMP/code")"
}

# Kills the run on all hosts after GRACE_SECONDS, unless it has ended on all of them before.
end_others() {
  local i
  for ((i = 0; i < GRACE_SECONDS; i++)); do
    [ ! -e "$TMP/code" ] || return 0
    sleep 1
  done
  everywhere "kill -KILL \$(cat grpo_jax/run.pid) 2>/dev/null || true"
}

# Waits for what a preemption does to the state; true where a slice was taken.
taken() {
  local waited=0
  say "looking whether $TPU_NAME was preempted"
  while ready; do
    [ "$waited" -lt "$SETTLE_SECONDS" ] || return 1
    sleep "$POLL_SECONDS"
    waited=$((waited + POLL_SECONDS))
  done
}

run() {
  local code workdir again=0
  workdir=$(workdir_of "$@")
  [ -n "$workdir" ] || fail "--workdir is missing: a bucket (gs://...) or a folder of a disk that all hosts mount"
  while true; do
    create
    code=0
    rm -f "$TMP/code" "$TMP/saved"
    { install && check_workdir "$workdir" && start "$@"; } || code=$?
    [ "$code" != 0 ] || return 0
    # 2 is bad input, which no other machine would mend.
    if [ "$code" != 2 ] && taken; then
      say "$TPU_NAME was preempted; the same command goes on when it is there again"
      again=0
    elif [ "$code" != 2 ] && [ -e "$TMP/saved" ] && [ $((again += 1)) -le "$REPEATS" ]; then
      say "the run has saved and can go on; the same command again ($again of at most $REPEATS times)"
    else
      fail "the command failed on $TPU_NAME with code $code; it is not repeated" "$code"
    fi
  done
}

fetch() {
  local remote=$1
  if [[ $remote == gs://* ]]; then
    call mkdir -p "$2"
    call gcloud storage rsync --recursive "$1" "$2"
  else
    [[ $remote == /* ]] || remote=grpo_jax/$remote # as `run` sees it
    vm scp --recurse "$(node 0):$remote" "$2" --worker=0
  fi
}

verb=${1:-}
[ $# -gt 0 ] && shift
case $verb in create | state | run | logs | stop | fetch | ssh | delete) ;; *) usage ;; esac
need TPU_NAME grpo
need ZONE us-east5-b
TMP=$(mktemp -d)
trap 'rm -rf "$TMP"' EXIT

case $verb in
  create) create ;;
  state) queued describe ;;
  run) run "$@" ;;
  logs)
    host=${1:-0}
    [ $# -eq 0 ] || shift
    on_host "$host" --command="tail $(printf '%q ' "${@:--n50}") grpo_jax/run.log"
    ;;
  stop) everywhere "touch grpo_jax/stop.asked; kill -TERM \$(cat grpo_jax/run.pid)" ;;
  fetch)
    [ $# -eq 2 ] || usage
    fetch "$@"
    ;;
  ssh) on_host "${1:-0}" ;;
  delete) queued delete --force --quiet ;;
esac
