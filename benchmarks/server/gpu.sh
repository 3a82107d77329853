#!/usr/bin/env bash
# Serves a dummy-weight Llama-3.1-8B shape with its EAGLE-3 shape on one GPU and measures it; acceptance is simulated.
#   gpu.sh start NAME [SGLang arguments...]   boot a server, wait until it is ready
#   gpu.sh cells NAME [arguments of python -m benchmarks.server...]
#   gpu.sh stop
# MODELS holds llama8b/ and llama8b-eagle3/ (config.json alone), OUT receives logs and results.
set -uo pipefail
cd "$(dirname "$0")/../.."
work=${WORK:-/tmp/adaptive-bench}; out=${OUT:-$work/out}; models=${MODELS:-/tmp/m}; port=${PORT:-30111}
mkdir -p "$work/plugin" "$out"
verb=$1; name=${2:-}; shift; shift || true

simulation() { # print the environment of a server that simulates acceptance
    python3 - "$work" <<'PY'
import sys
from pathlib import Path
from benchmarks.server.simulated import Process, environment
work = Path(sys.argv[1])
Process(work / "p.bin", create=True)
for key, value in environment(work / "p.bin", work / "plugin").items():
    print(f"{key}={value}")
PY
}

case $verb in
start)
    mapfile -t variables < <(simulation)
    # A session of its own: the server outlives the shell that started it.
    setsid env "${variables[@]}" python3 -m sglang.launch_server --model-path "$models/llama8b" --load-format dummy \
        --skip-tokenizer-init --disable-radix-cache --mem-fraction-static 0.7 --max-running-requests 64 \
        --cuda-graph-max-bs-decode 64 --port "$port" "$@" > "$work/$name.log" 2>&1 &
    echo $! > "$work/pid"
    begin=$SECONDS
    until grep -q "fired up" "$work/$name.log"; do
        sleep 1
        if ! kill -0 "$(cat "$work/pid")" 2>/dev/null || ((SECONDS - begin > 280)); then
            echo "$name did not start"; grep -vE "^\s" "$work/$name.log" | tail -25 | cut -c1-300
            cp "$work/$name.log" "$out/"; exit 1
        fi
    done
    echo "$name ready after $((SECONDS - begin)) s"
    grep -E "Built adaptive runtime state|adaptive" "$work/$name.log" | tail -12 | cut -c1-200
    ;;
cells)
    python3 -m benchmarks.server --url "http://127.0.0.1:$port" --acceptance "$work/p.bin" --label "$name" \
        --output "$out/$name.json" "$@" 2>&1 | tee "$out/$name.txt"
    cp "$work"/*.log "$out/" 2>/dev/null
    ;;
stop)
    kill -- "-$(cat "$work/pid")" 2>/dev/null
    for _ in $(seq 20); do kill -0 "$(cat "$work/pid")" 2>/dev/null || break; sleep 0.5; done
    kill -9 -- "-$(cat "$work/pid")" 2>/dev/null; sleep 2
    nvidia-smi --query-gpu=memory.used --format=csv,noheader
    ;;
esac
