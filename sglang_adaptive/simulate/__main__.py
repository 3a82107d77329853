"""``python -m sglang_adaptive.simulate``: the same as ``sglang-adaptive simulate``."""

import sys

from sglang_adaptive.simulate.command import main

sys.exit(main())
