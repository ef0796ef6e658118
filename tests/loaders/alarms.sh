#!/usr/bin/env bash
# Lints what producers export of every family, and SmolLM2 as they export it: nothing may be above a note.
# Arguments: the program, then what alarms.py takes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environments=$here/../../build/loaders
export TWOFOUR=${1:?program}
shift
"$here/environments/make.sh" "$environments" smollm2
smollm2=$environments/smollm2-bf16
[ -e "$smollm2/config.json" ] ||
  "$environments/smollm2/bin/python" "$here/../../examples/smollm2/make_checkpoint.py" "$smollm2" --variant bf16
exec "$environments/producers/bin/python" "$here/alarms.py" --smollm2 "$smollm2" "$@"
