#!/usr/bin/env bash
# Converts a checkpoint on a Slurm cluster: plans here, lets an array job write the weight files and a job that waits for
# all of it complete the artifact. Source, destination and plan must be on a file system that all nodes share.
#   examples/slurm/submit.sh SRC DST TASKS --to v7 [more options of twofour plan]
# Options for sbatch, such as the partition, go into SBATCH_PARTITION and its like; TWOFOUR names the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 4 ] || { sed -n '2,5p' "$0" >&2; exit 2; }
source=$1 destination=$2 tasks=$3
export TWOFOUR=${TWOFOUR:-twofour}

plan=$(realpath -m "$destination").plan.json
"$TWOFOUR" plan "$source" "$destination" "${@:4}" --tasks "$tasks" -o "$plan"
array=$(sbatch --parsable --array="0-$((tasks - 1))" "$here/convert.sbatch" "$plan" "$tasks")
merge=$(sbatch --parsable --dependency="afterok:$array" --kill-on-invalid-dep=yes "$here/merge.sbatch" "$destination")
echo "submitted array $array of $tasks tasks, then merge $merge"
