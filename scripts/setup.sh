#!/bin/sh
# Sets up the virtual environment $1 from a clean clone: finds Python, gets uv, installs the pinned packages.
set -eu
venv=$1
download="about 4.5 GB"
disk="9.6 GB"

usable() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; }
newer() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

# SGLang 0.5.23 has wheels for Python 3.11, 3.12 and 3.13.
find_python() {
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3 python}; do
        if usable "$candidate"; then command -v "$candidate"; return; fi
    done
    if [ -n "${PYTHON:-}" ]; then
        echo "PYTHON=$PYTHON: not a Python 3.11, 3.12 or 3.13" >&2
        return 1
    fi
    for candidate in python3 python; do
        if newer "$candidate"; then echo fetch; return; fi
    done
    echo "no Python 3.11 or newer found; install one, or name it: make PYTHON=/path/to/python3.11 ..." >&2
    return 1
}

find_uv() {
    for candidate in uv "$venv/bin/uv" .uv/bin/uv; do
        if "$candidate" --version >/dev/null 2>&1; then echo "$candidate"; return; fi
    done
    base=$1
    [ "$base" != fetch ] || base=$(command -v python3 || command -v python)
    echo "getting uv, the package installer (about 25 MB)" >&2
    if "$base" -m venv .uv >/dev/null 2>&1 && .uv/bin/python -m pip install -q uv >&2; then :
    elif rm -rf .uv && "$base" -m pip install -q --target .uv uv >&2; then :
    else
        echo "cannot get uv: $base has neither a working venv module nor pip; install one of them, or uv" >&2
        return 1
    fi
    echo .uv/bin/uv
}

python=$(find_python)
uv=$(find_uv "$python")
if [ ! -x "$venv/bin/python" ]; then
    if [ "$python" = fetch ]; then
        echo "SGLang has no packages for Python 3.14 and newer: uv fetches Python 3.13 (about 30 MB)"
        python=3.13
    fi
    if ! "$uv" venv -q --python "$python" "$venv"; then
        echo "cannot make $venv with Python $python; install Python 3.11, 3.12 or 3.13 and run make again" >&2
        exit 1
    fi
fi
if [ ! -e "$venv/bin/sglang" ]; then
    echo "installing SGLang and what it needs into $venv: $download to download, $disk on disk, only this once"
fi
# SGLang itself depends on pre-releases; every version is fixed by constraints.txt. Why overrides: see the file.
"$uv" pip install --compile-bytecode --python "$venv/bin/python" --prerelease=allow --index-strategy unsafe-best-match \
    --constraints constraints.txt --override overrides.txt --editable ".[test,dev,docs]"
