#!/usr/bin/env bash
# Holds the decoder against transformers, and statistics that it collects against those of examples/statistics. Arguments:
# the test program of lib/run/decoder, twofour, and the test program of lib/run/gradients.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environments=$here/../../build/loaders
test=${1:?test program} program=${2:?twofour}
"$here/environments/make.sh" "$environments"
python=$environments/producers/bin/python
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
"$python" "$here/logits.py" "$made/small"
"$python" "$here/logits.py" "$made/large" --large
for config in "$here"/../golden/decoder/*.json; do
  cmp "$config" "$made/small/$(basename "$config")"
done
for cases in small large; do
  TWOFOUR_LOGITS=$made/$cases "$test" -tc='logits are*' --success=false
done
gradients=${3:?test program of gradients}
"$python" "$here/gradients.py" "$made/small-gradients"
"$python" "$here/gradients.py" "$made/large-gradients" --large
for cases in small large; do
  TWOFOUR_LOGITS=$made/$cases TWOFOUR_GRADIENTS=$made/$cases-gradients "$gradients" -tc='gradients are those*' --success=false
done
"$python" "$here/collected.py" "$program"
