#!/usr/bin/env bash
# benchmarks.attention_dp.served on a remote host of two GPUs that hands back one folder and ends a command after some
# minutes: gpu.sh [arguments of python -m benchmarks.attention_dp.served]
# After it, also when it was ended from outside, OUT holds results.tar.gz (JSON and round logs), logs.tar.gz (the ends of
# the servers' logs) and console.txt.
set -uo pipefail
cd "$(dirname "$0")/../../.."
work=${WORK:-/tmp/attention-dp}; out=${OUT:-$work/out}
mkdir -p "$work/results" "$work/work" "$out"

pack() {
    (cd "$work" && gzip -kf work/*-rounds-of-rank-* 2>/dev/null; tar -czf "$out/results.tar.gz" --ignore-failed-read results work/*.gz 2>/dev/null)
    (cd "$work/work" && for log in *.log; do [ -e "$log" ] && tail -c 1500000 "$log" >"${log%.log}.tail"; done
     tar -czf "$out/logs.tar.gz" --ignore-failed-read ./*.tail ./*.json models/*.json 2>/dev/null)
}
trap pack EXIT
trap 'kill -TERM "$job" 2>/dev/null; wait "$job"; exit 143' TERM INT
nvidia-smi --query-gpu=index,name,memory.total,memory.used --format=csv,noheader 2>/dev/null | tee "$out/console.txt"
python3 -u -m benchmarks.attention_dp.served --output "$work/results" --work "$work/work" "$@" \
    > >(tee -a "$out/console.txt") 2>&1 &
job=$!
wait "$job"
