#!/usr/bin/env bash
# benchmarks.served on a remote GPU host that hands back one folder and ends a command after some minutes.
#   gpu.sh start|drive|stop ARGUMENTS of python -m benchmarks.served
# Servers, logs and results live in WORK, which stays between commands. After each command OUT holds the JSON files,
# logs.tar.gz and console.txt, also when it was ended from outside.
set -uo pipefail
cd "$(dirname "$0")/../.."
work=${WORK:-/tmp/served}; out=${OUT:-$work/out}
mkdir -p "$work/results" "$out"

pack() {
    tar -C "$work" -czf "$out/results.tar.gz" results
    (cd "$work" && for log in */*.log; do [ -e "$log" ] && tail -c 400000 "$log" >"${log%.log}.tail"; done
     tar -czf "$out/logs.tar.gz" --ignore-failed-read ./*/*.tail 2>/dev/null)
}
trap pack EXIT
trap 'exit 143' TERM INT
python3 -m benchmarks.served "$1" "$2" --work "$work" "${@:3}" 2>&1 | tee -a "$work/console.txt" "$out/console.txt"
code=${PIPESTATUS[0]}
[ "$1" = stop ] || nvidia-smi --query-gpu=memory.used,utilization.gpu --format=csv,noheader 2>/dev/null
exit "$code"
