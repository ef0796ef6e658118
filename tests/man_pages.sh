#!/usr/bin/env bash
# Every command has a manual page, and mandoc has nothing to say of any. Ends with 77 where there is no mandoc.
set -euo pipefail
command -v mandoc >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$TWOFOUR" man "$work"
# Pages are the same for the same program, so they have no date.
mandoc -Tlint -Wwarning "$work"/*.1 | grep -v 'missing date' && exit 1
commands=$("$TWOFOUR" --help | sed -n '/^Look at/,/^Options:/s/^  \([a-z]*\) .*/\1/p')
[ -n "$commands" ]
for command in $commands; do
  mandoc -Tascii "$work/twofour-$command.1" | sed 's/.\x08//g' >"$work/text"
  for option in $("$TWOFOUR" "$command" --help-all | grep -oE '^  (-[a-z],)?--[a-z-]+' | grep -oE -e '--[a-z-]+'); do
    grep -q -e "$option" "$work/text" || { echo "twofour-$command.1: expected $option, found none"; exit 1; }
  done
  grep -q "twofour $command" "$work/text"
done
pages=("$work"/*.1)
echo "${#pages[@]} manual pages"
