#!/bin/sh
# Writes constraints.txt: today's newest version of every package, by name and version only.
set -eu
venv=$1
PATH="$PATH:$venv/bin:.uv/bin"
uv pip compile pyproject.toml --all-extras --python "$venv/bin/python" --upgrade --quiet \
    --override overrides.txt --prerelease=allow --index-strategy unsafe-best-match \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header --output-file constraints.txt
echo "constraints.txt pins $(grep -c == constraints.txt) packages; run make test before it is committed"
