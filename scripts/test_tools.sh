#!/bin/sh
# Installs what some tests drive and pip cannot give them: a browser for the page, Prometheus for the metrics.
set -eu
packages="chromium prometheus"

if ! command -v apt-get >/dev/null 2>&1; then
    echo "test-tools: no apt-get here; install by hand: $packages" >&2
    exit 1
fi
if [ "$(id -u)" -eq 0 ]; then as_root=""
elif command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then as_root="sudo -n"
else
    echo "test-tools: run as root: apt-get install $packages" >&2
    exit 1
fi
$as_root apt-get update -qq
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $packages
