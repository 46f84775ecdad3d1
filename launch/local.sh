#!/usr/bin/env bash
# Runs an experiment on this machine, installing what it needs into .venv first:
#   launch/local.sh --config=experiments/arithmetic.py --workdir=runs/arithmetic
# All arguments go to experiments/run.py. Relative paths are seen from the repository. EXTRAS=plot,cuda for a GPU.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. launch/venv.sh "${EXTRAS:-plot}"
# Memory in large pages, and freed arrays go back to the system at once (docs/performance.md, "Memory").
export GLIBC_TUNABLES="${GLIBC_TUNABLES-glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=4194304}"
exec .venv/bin/python -m experiments.run "$@"
