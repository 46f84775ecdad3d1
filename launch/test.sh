#!/usr/bin/env bash
# The linter, the type checker, then the tests: `launch/test.sh` for the quick ones, `launch/test.sh -m slow`, `launch/test.sh -k learn`.
# All arguments go to pytest. transformers and torch are installed, too: they are what the models are compared with.
# EXTRAS=tpu installs the compiler for TPUs as well, without which the slow tests of launch/plan.py are skipped.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")/.."
. launch/venv.sh "test,hf${EXTRAS:+,$EXTRAS}"
.venv/bin/python -m ruff check .
.venv/bin/python -m ruff format --check .
.venv/bin/python -m mypy
exec .venv/bin/python -m pytest "$@"
