"""``python -m sglang_adaptive.lab.simulate``: the same as ``sglang-adaptive simulate``."""

import sys

from sglang_adaptive.lab.simulate.command import main

sys.exit(main())
