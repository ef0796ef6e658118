#!/usr/bin/env bash
# Brings up a Slurm cluster of four nodes on this machine, converts a checkpoint by examples/slurm with a task that is
# killed and requeued, and compares the artifact with that of one machine. TWOFOUR names the program. Exit code 77:
# Slurm is not installed (.ci/install slurmd slurmctld slurm-client munge).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
: "${TWOFOUR:?names the program}"
export PATH=$PATH:/usr/sbin
for program in slurmctld slurmd sbatch scontrol squeue munged; do
  command -v "$program" >/dev/null || { echo "skipped: no $program"; exit 77; }
done

work=$(mktemp -d)
chmod 755 "$work"  # munged wants its socket within everybody's reach
source "$here/cluster.sh"
finish() {
  local code=$?
  stop_cluster
  if [ $code -ne 0 ]; then tail -n 20 "$work"/*.out "$work"/log/* 2>/dev/null || true; fi
  rm -rf "$work"
}
trap finish EXIT
start_cluster "$work" 4

"$TWOFOUR" synth "$work/source" --shape qwen3-moe --layers 2 --experts 16 --vocab 64 --max-shard-size 20MB --quiet
"$TWOFOUR" convert "$work/source" "$work/alone" --to v7 --max-shard-size 8MB --quiet

# What the array job runs. The first time, task 2 is killed without warning while it writes a file, and its job is
# queued again as after a node failure.
cat >"$work/twofour" <<END
#!/bin/bash
[ "\$1 \${SLURM_ARRAY_TASK_ID:-} \${SLURM_RESTART_COUNT:-0}" = "convert 2 0" ] || exec "$TWOFOUR" "\$@"
"$TWOFOUR" "\$@" &
until ls -l /proc/\$!/fd 2>/dev/null | grep -q unfinished; do kill -0 \$! || break; done
kill -9 \$!
wait \$!
echo "killed, code \$?" >>"$work/killed"
scontrol requeue "\$SLURM_JOB_ID"
sleep 60
END
chmod +x "$work/twofour"

cd "$work"
TWOFOUR=$work/twofour SBATCH_OUTPUT=$work/%x-%a.out "$here/../../examples/slurm/submit.sh" \
  "$work/source" "$work/artifact" 6 --to v7 --max-shard-size 8MB
wait_for_jobs 120

cat "$work"/*.out
[ "$(cat "$work/killed")" = "killed, code 137" ] || { echo "expected task 2 to be killed once"; exit 1; }
diff -r "$work/alone" "$work/artifact"
"$TWOFOUR" validate "$work/artifact" --source "$work/source" --quiet
echo "six tasks on four nodes, one killed and requeued: the same $(find "$work/artifact" -type f | wc -l) files as alone"
