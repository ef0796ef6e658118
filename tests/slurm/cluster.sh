# shellcheck shell=bash
# A Slurm cluster on this machine, for tests. Sourced; needs no rights but those of whoever runs it.

# start_cluster FOLDER NODES: sets SLURM_CONF.
start_cluster() {
  cluster=$1
  local host port i
  host=$(hostname -s)
  port=$((20000 + $$ % 10000))
  mkdir -p "$cluster"/{munge,log,spool,state}
  export SLURM_CONF=$cluster/slurm.conf
  {
    cat <<END
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$cluster/munge/sock
CredType=cred/munge
SlurmctldPort=$port
SlurmctldPidFile=$cluster/ctld.pid
SlurmdPidFile=$cluster/slurmd-%n.pid
SlurmctldLogFile=$cluster/log/ctld.log
SlurmdLogFile=$cluster/log/slurmd-%n.log
SlurmdSpoolDir=$cluster/spool/%n
StateSaveLocation=$cluster/state
# The default, proctrack/cgroup, needs a cgroup of its own and drains the nodes where there is none.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
ReturnToService=2
SlurmdTimeout=60
InactiveLimit=0
MinJobAge=300
KillWait=5
MpiDefault=none
# Nodes may have more processors than this machine.
SlurmdParameters=config_overrides
MailProg=/bin/true
PartitionName=main Nodes=n[1-$2] Default=YES MaxTime=10:00 State=UP OverSubscribe=NO
END
    for ((i = 1; i <= $2; ++i)); do
      echo "NodeName=n$i NodeHostname=$host NodeAddr=127.0.0.1 Port=$((port + i)) CPUs=4 Boards=1 SocketsPerBoard=1" \
        "CoresPerSocket=4 ThreadsPerCore=1 RealMemory=4000 State=UNKNOWN"
    done
  } >"$SLURM_CONF"
  (umask 077 && dd if=/dev/urandom of="$cluster/munge/key" bs=128 count=1 status=none)
  munged --key-file="$cluster/munge/key" --socket="$cluster/munge/sock" --pid-file="$cluster/munge/pid" \
    --log-file="$cluster/munge/log" --seed-file="$cluster/munge/seed"
  slurmctld -i
  for ((i = 1; i <= $2; ++i)); do
    mkdir -p "$cluster/spool/n$i"
    slurmd -N "n$i"
  done
  for ((i = 0; i < 200; ++i)); do
    [ "$(sinfo -h -N -t idle -o %n 2>/dev/null | wc -l)" -lt "$2" ] || return 0
    sleep 0.1
  done
  echo "the cluster did not come up"
  return 1
}

# wait_for_jobs SECONDS: until the queue is empty. Slurm lets a requeued job wait two minutes, here three seconds: what a
# node was told to kill it does not start again within the same second.
wait_for_jobs() {
  local begin=$SECONDS id
  local -A seen=()
  while [ -n "$(squeue -h -o %i)" ]; do
    for id in $(squeue -h -r -t PENDING -o '%i %r' | awk '$2 == "BeginTime" {print $1}'); do
      : "${seen[$id]:=$SECONDS}"
      if [ $((SECONDS - seen[$id])) -ge 3 ]; then scontrol update JobId="$id" StartTime=now || true; fi
    done
    if [ $((SECONDS - begin)) -gt "$1" ]; then
      squeue
      return 1
    fi
    sleep 0.2
  done
}

# Returns when every daemon has ended: they write to the folder until then.
stop_cluster() {
  local file pid i
  local -a running=()
  scancel --user="$(id -un)" 2>/dev/null || true
  for file in "$cluster"/slurmd-*.pid "$cluster/ctld.pid" "$cluster/munge/pid"; do
    if [ -s "$file" ]; then running+=("$(cat "$file")"); fi
  done
  kill "${running[@]}" 2>/dev/null || true
  for pid in "${running[@]}"; do
    for ((i = 0; i < 100; ++i)); do
      kill -0 "$pid" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$pid" 2>/dev/null || true
  done
}
