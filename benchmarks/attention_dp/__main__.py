"""``python -m benchmarks.attention_dp``."""

from __future__ import annotations

import sys

from benchmarks.attention_dp import main

raise SystemExit(main(sys.argv[1:]))
