#!/usr/bin/env bash
# On a GPU host: train the pair, then serve it with and without speculation and drive both.
#   TEXT="folders of code and prose" TARGET_SECONDS=240 DRAFT_SECONDS=150 benchmarks/real_pair/gpu.sh train
#   benchmarks/real_pair/gpu.sh serve
# Models, logs and results live in WORK; OUT gets the JSON and the logs. Serving goes on after an error.
set -uo pipefail
cd "$(dirname "$0")/../.."
step=${1:?train or serve}
work=${WORK:-/tmp/real-pair}; out=${OUT:-$work/out}; pair=$work/pair
mkdir -p "$work" "$out"
groups=()
kill_all() { for group in "${groups[@]}"; do kill -INT -- "-$group" 2>/dev/null; done; sleep 3; for group in "${groups[@]}"; do kill -KILL -- "-$group" 2>/dev/null; done; }
trap 'cp "$work"/*.json "$pair"/training.json "$out"/ 2>/dev/null; (cd "$work" && tar -czf "$out"/real-pair-logs.tar.gz ./*.log); kill_all' EXIT
trap 'exit 143' TERM INT

if [ "$step" = train ]; then
    # shellcheck disable=SC2086
    python3 -m benchmarks.real_pair.train --out "$pair" --text $TEXT \
        --target-seconds "${TARGET_SECONDS:-240}" --draft-seconds "${DRAFT_SECONDS:-150}" >"$work/train.log" 2>&1
    code=$?
    tail -n 20 "$work/train.log"
    exit "$code"
fi
[ -e "$pair/prompts.json" ] || { echo "the training failed"; exit 1; }

serve() { # NAME PORT ARGUMENTS...: start in the background, in a process group of its own
    local name=$1 port=$2; shift 2
    setsid python3 -m sglang.launch_server --model-path "$pair/target" --dtype bfloat16 --skip-tokenizer-init \
        --port "$port" --max-total-tokens 120000 --mem-fraction-static 0.6 --max-running-requests 64 \
        --cuda-graph-max-bs-decode 64 --attention-backend fa3 "$@" >"$work/$name.log" 2>&1 &
    groups+=($!)
}
ready() { for _ in $(seq 180); do curl -sf "localhost:$1/health" >/dev/null && return 0; sleep 1; done; echo "no server on $1"; return 1; }
drive() { python3 -m benchmarks.real_pair.serve --prompts "$pair/prompts.json" "$@"; }

echo '{"policy": "throughput"}' >"$work/config.txt"
draft=(--speculative-algorithm EAGLE3 --speculative-draft-model-path "$pair/draft" --speculative-eagle-topk 1
    --speculative-num-steps 3 --speculative-num-draft-tokens 4 --speculative-adaptive-config "$work/config.txt")
serve plain 31001
serve adaptive 31002 "${draft[@]}"
serve window 31003 "${draft[@]}" --speculative-draft-window-size 512
ready 31001; ready 31002; ready 31003
drive --url http://127.0.0.1:31002 --plain http://127.0.0.1:31001 --json "$work/real-pair.json"
drive --url http://127.0.0.1:31003 --json "$work/real-pair-window.json" --parts contexts \
    --note "draft window of 512 tokens"
tail -n 3 "$work"/*.log | cut -c1-300
