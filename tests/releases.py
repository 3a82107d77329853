"""Facts about the SGLang under test, which need not be the newest supported release: see ``make newest``."""

from __future__ import annotations

from importlib.metadata import version

import pytest
from packaging.version import Version

from sglang_adaptive.sglang_plugin.contract import RELEASES

NEWEST = RELEASES[-1]
IS_OLDER = Version(version("sglang")) < Version(NEWEST)
since_the_newest = pytest.mark.skipif(IS_OLDER, reason=f"is so since SGLang {NEWEST}")
of_the_newest = pytest.mark.skipif(version("sglang") != NEWEST, reason=f"changes the source of SGLang {NEWEST}")
