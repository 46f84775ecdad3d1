# shellcheck shell=bash
# Sourced by the others with the extras to install, as in `. launch/venv.sh plot`: makes .venv once and installs the
# project into it, editable; again only when pyproject.toml or constraints.txt changed. PYTHON chooses the interpreter.

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
      echo "$candidate"
      return
    fi
  done
  echo "error: Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2
  return 2
}

make_venv() {
  local python
  python=$(find_python) || return
  echo "making .venv with $("$python" --version)"
  # Debian's Python makes a whole environment only with python3-venv; pip outside can fill one that has no pip.
  if ! "$python" -m venv .venv >/dev/null 2>&1; then
    rm -rf .venv
    "$python" -m venv --without-pip .venv && "$python" -m pip --python .venv/bin/python install -qq pip
  fi
}

check_extras() {
  .venv/bin/python - "$1" <<'PYTHON'
import sys, tomllib

known = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
for name in sys.argv[1].split(","):
  if name not in known:
    sys.exit(f"error: EXTRAS has {name!r}: no such extra; use some of {', '.join(sorted(known))}")
PYTHON
}

install() {
  local extras=$1 stamp hash
  stamp=.venv/.installed-${extras//,/-}
  hash=$(.venv/bin/python -c 'import hashlib; print(hashlib.sha256(b"".join(open(f, "rb").read() for f in ("pyproject.toml", "constraints.txt"))).hexdigest())') || return
  if [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ]; then
    return
  fi
  grep -qsx "$hash" .venv/.installed-* || rm -f .venv/.installed-*
  echo "installing grpo_jax[$extras] into .venv (minutes, the first time)"
  case ",$extras," in
    *,hf,* | *,gguf,*) .venv/bin/python -m pip install -qq torch --constraint constraints.txt || return ;;
  esac
  .venv/bin/python -m pip install -qq --editable ".[$extras]" --constraint constraints.txt || return
  echo "$hash" >"$stamp"
}

[ -x .venv/bin/python ] || make_venv || exit
check_extras "$1" || exit 2
install "$1" || exit
export PYTHONUNBUFFERED=1        # lines appear as they are written, in a log file too
export TOKENIZERS_PARALLELISM=false
export TF_CPP_MIN_LOG_LEVEL=1    # of XLA, which shares its logging with TensorFlow: no chatter
export USE_TF=0 HF_HUB_OFFLINE=1 # nothing is fetched: weights and data come from folders
