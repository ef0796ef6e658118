#!/usr/bin/env bash
# Refuses a checkpoint that must not be served. Arguments: the checkpoint or artifact, then, where an artifact is to
# be proven, its source. Exit code 0: sound; 1: findings or differences; 2: trouble. TWOFOUR names the program, OUT a
# directory for reports (default: reports), PROFILE and BASELINE a profile and a baseline of lint, LINT further options.
set -uo pipefail
if [ $# -lt 1 ] || [ $# -gt 2 ]; then
  echo "usage: $0 CHECKPOINT [SOURCE]" >&2
  exit 2
fi
twofour=${TWOFOUR:-twofour} out=${OUT:-reports}
mkdir -p "$out" || exit 2

worst=0
# Runs one check to its end and keeps the worst exit code; a check that never ran is trouble, not success.
check() {
  local code=0
  "$@" || code=$?
  [ $code -le 1 ] || code=2
  [ $code -le $worst ] || worst=$code
}

# SARIF for the code host, and a page to look at; both before anything fails.
read -ra options <<<"${LINT:-}"
[ -z "${PROFILE:-}" ] || options+=(--profile "$PROFILE")
[ -z "${BASELINE:-}" ] || options+=(--baseline "$BASELINE")
check "$twofour" lint "$1" "${options[@]}" --html "$out/lint.html" --sarif >"$out/lint.sarif"
[ $worst -ne 1 ] || "$twofour" lint "$1" "${options[@]}"

if [ -e "$1/twofour.json" ]; then
  source=()
  [ $# -lt 2 ] || source=(--source "$2")
  check "$twofour" validate "$1" "${source[@]}" --html "$out/validate.html"
elif [ $# -eq 2 ]; then
  echo "$1: expected an artifact to prove from $2, found no twofour.json" >&2
  worst=2
fi

case $worst in
  0) echo "gate: $1 is sound" ;;
  1) echo "gate: $1 is refused; see $out" >&2 ;;
  *) echo "gate: $1 could not be checked" >&2 ;;
esac
exit $worst
