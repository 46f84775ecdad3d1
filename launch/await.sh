# shellcheck shell=bash
# Sourced by those that start a run and hand signals on to it.

# Waits for the process $1, and returns what it ended with: a trapped signal ends `wait`, not the process.
await() {
  local code=0
  while kill -0 "$1" 2>/dev/null; do
    wait "$1" || true
  done
  wait "$1" || code=$? # again: it may have ended while a trap ran, and bash keeps its code
  return "$code"
}
