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
    if [ "$candidate" = "${PYTHON:-}" ]; then
      echo "error: PYTHON=$PYTHON: is no Python 3.11 or newer; use the path of one, or unset it" >&2
      return 2
    fi
  done
  echo "error: Python 3.11 or newer is needed; set PYTHON=/path/to/python3" >&2
  return 2
}

# Makes .venv with pip, or what is missing of it where that was interrupted.
make_venv() {
  local python
  python=$(find_python) || return
  if ! .venv/bin/python -c '' 2>/dev/null; then # there is none, or the Python that it links to is gone
    echo "making .venv with $("$python" --version)"
    "$python" -m venv --clear --without-pip .venv || return
  fi
  # Debian's Python makes pip only with python3-venv; pip outside can install it.
  .venv/bin/python -m pip --version >/dev/null 2>&1 ||
    .venv/bin/python -m ensurepip --default-pip >/dev/null 2>&1 ||
    "$python" -m pip --python .venv/bin/python install -qq pip
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

# What .venv depends on: the two files, and the version of Python, whose packages no other one sees.
wanted() {
  .venv/bin/python -c 'import hashlib, sys; print(hashlib.sha256(b"".join(open(f, "rb").read() for f in ("pyproject.toml", "constraints.txt")) + b"%d.%d" % sys.version_info[:2]).hexdigest())'
}

is_installed() {
  local hash
  [ -x .venv/bin/python ] && hash=$(wanted) && [ "$(cat ".venv/.installed-${1//,/-}" 2>/dev/null)" = "$hash" ]
}

install() {
  local extras=$1 stamp hash
  stamp=.venv/.installed-${extras//,/-}
  hash=$(wanted) || return
  grep -qsx "$hash" .venv/.installed-* || rm -f .venv/.installed-*
  echo "installing grpo_jax[$extras] into .venv (minutes, the first time)"
  case ",$extras," in
    *,hf,* | *,gguf,*) .venv/bin/python -m pip install -qq torch --constraint constraints.txt || return ;;
  esac
  .venv/bin/python -m pip install -qq --editable ".[$extras]" --constraint constraints.txt || return
  echo "$hash" >"$stamp"
}

if ! is_installed "$1"; then
  # Others that start here meanwhile, such as the jobs of a cluster, wait.
  exec 9>.venv.lock
  if command -v flock >/dev/null; then flock 9 || true; fi
  if ! is_installed "$1"; then
    make_venv || exit
    check_extras "$1" || exit 2
    install "$1" || exit
  fi
  exec 9>&-
fi
export PYTHONUNBUFFERED=1        # lines appear as they are written, in a log file too
export TOKENIZERS_PARALLELISM=false
export TF_CPP_MIN_LOG_LEVEL=1    # of XLA, which shares its logging with TensorFlow: no chatter
export USE_TF=0 HF_HUB_OFFLINE=1 # nothing is fetched: weights and data come from folders
