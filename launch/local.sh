#!/usr/bin/env bash
# Runs an experiment on this machine, installing what it needs into .venv first:
#   launch/local.sh --config=experiments/arithmetic.py --workdir=runs/arithmetic
# All arguments go to experiments/run.py. Relative paths are seen from the repository. EXTRAS=plot,cuda for a GPU.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")/.."
. launch/venv.sh "${EXTRAS:-plot}"
# Large arrays go back to the system when they are freed, and come in large pages (docs/performance.md, "Memory").
export GLIBC_TUNABLES="${GLIBC_TUNABLES-glibc.malloc.hugetlb=1:glibc.malloc.mmap_threshold=33554432:glibc.malloc.trim_threshold=536870912:glibc.malloc.arena_max=1}"
exec .venv/bin/python -m experiments.run "$@"
