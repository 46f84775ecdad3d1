# shellcheck shell=bash
# Sourced by those that start a run and hand signals on to it.

# Waits for the process $1, and returns what it ended with: a trapped signal ends `wait`, not the process.
await() {
  local code=0
  wait "$1" || code=$?
  while kill -0 "$1" 2>/dev/null; do
    code=0
    wait "$1" || code=$?
  done
  return "$code"
}
