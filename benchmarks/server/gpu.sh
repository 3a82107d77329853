#!/usr/bin/env bash
# The harness on a remote GPU host that hands back one folder and ends a command after some minutes.
#   gpu.sh matrix|start|drive|stop [arguments of python -m benchmarks.server ...]
# MODELS holds llama8b/ and llama8b-eagle3/ (config.json alone). Servers, logs and results live in WORK, which stays
# between commands; after each command OUT holds results.tar.gz (JSON and logs) and console.txt.
set -uo pipefail
cd "$(dirname "$0")/../.."
work=${WORK:-/tmp/adaptive-bench}; out=${OUT:-$work/out}
mkdir -p "$work" "$out"
verb=$1; shift

pack() { # also when the command is ended from outside
    (cd "$work" && tar -czf "$out/results.tar.gz" --ignore-failed-read ./*.json ./*.log ./*.txt ./configs ./profiles ./*-learnt 2>/dev/null)
}
trap pack EXIT
trap 'exit 143' TERM INT

case $verb in
matrix | start | drive) set -- "$verb" --host gpu --models "${MODELS:-/tmp/m}" --output "$work" "$@" ;;
stop) set -- stop --output "$work" ;;
*) echo "usage: gpu.sh matrix|start|drive|stop [arguments]" >&2; exit 2 ;;
esac
python3 -m benchmarks.server "$@" 2>&1 | tee -a "$work/console.txt" "$out/console.txt"
code=${PIPESTATUS[0]}
if [ "$verb" = stop ] || [ "$verb" = matrix ]; then
    nvidia-smi --query-gpu=memory.used --format=csv,noheader
fi
exit "$code"
