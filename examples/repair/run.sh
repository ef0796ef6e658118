#!/usr/bin/env bash
# Breaks a small checkpoint in five ways, lints it, repairs it with the original as donor, and lints what was written with
# the profile of engines. TWOFOUR names the program.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

"$TWOFOUR" synth original --shape qwen3-moe --small --layers 2 --experts 4 --max-shard-size 300kB --quiet
cp -r original broken
# A tokenizer's defaults that no request can have, an index of another save, a head and a list that are lost.
echo '{"top_p": 7}' > broken/generation_config.json
sed -i 's/"total_size": [0-9]*/"total_size": 1/' broken/model.safetensors.index.json
sed -i 's/"ignore": \[/"ignore": ["nothing.of.this.name", /' broken/config.json

if "$TWOFOUR" lint broken --profile serve --quiet; then
  echo "expected findings, found none"
  exit 1
fi
"$TWOFOUR" repair broken mended --donor original --profile serve --dry-run
"$TWOFOUR" repair broken mended --donor original --profile serve
"$TWOFOUR" lint mended --profile serve
"$TWOFOUR" validate mended --source broken --donor original
