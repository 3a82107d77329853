#!/usr/bin/env bash
# One command of a benchmark on a remote GPU host that ends a command after some minutes and hands back one folder:
#   gpu.sh gates|served|policies|architectures|attention_dp|start_up|penalties ARGUMENTS of python -m benchmarks.NAME
# Servers, logs and results live in WORK, which stays between commands. After each command, also when it was ended from
# outside, OUT holds results.tar.gz (JSON and round logs), logs.tar.gz (the ends of the servers' logs) and console.txt.
set -uo pipefail
cd "$(dirname "$0")/.."
name=$1; shift
export WORK=${WORK:-/tmp/benchmarks/$name}
out=${OUT:-$WORK/out}
mkdir -p "$WORK" "$out"

pack() {
    (
        cd "$WORK" || exit
        tar -czf "$out/results.tar.gz" --ignore-failed-read results recorded drives ./*.txt ./*-rounds-of-rank-* configs ./*-learnt profiles 2>/dev/null
        find . -name '*.log' | while read -r log; do tail -c 1500000 "$log" >"${log%.log}.tail"; done
        find . -name '*.tail' -print0 | tar -czf "$out/logs.tar.gz" --ignore-failed-read --null -T - 2>/dev/null
    )
}
trap pack EXIT
trap 'kill -TERM "$job" 2>/dev/null; wait "$job"; exit 143' TERM INT
python3 -u -m "benchmarks.$name" "$@" > >(tee -a "$WORK/console.txt" "$out/console.txt") 2>&1 &
job=$!
wait "$job"
code=$?
nvidia-smi --query-gpu=index,name,memory.used,utilization.gpu --format=csv,noheader 2>/dev/null
exit "$code"
