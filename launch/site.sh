#!/usr/bin/env bash
# Builds the site of docs/ in build/site and fails on a broken link: `launch/site.sh`. All arguments go to mkdocs build.
set -euo pipefail
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")/.."
. launch/venv.sh docs
export NO_MKDOCS_2_WARNING=1 # mkdocs-material's advertisement
.venv/bin/python -m mkdocs build --strict --site-dir build/site "$@"
