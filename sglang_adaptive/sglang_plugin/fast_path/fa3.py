"""The shortcuts of fa3's passes in one scheduler."""

from __future__ import annotations

from sglang_adaptive.sglang_plugin.fast_path.extend_metadata import ExtendMetadata
from sglang_adaptive.sglang_plugin.fast_path.length_kernel import LengthKernel
from sglang_adaptive.sglang_plugin.fast_path.queries_in_place import QueriesInPlace
from sglang_adaptive.sglang_plugin.fast_path.verify_schedule import VerifySchedule


class Fa3:
    """Each with its guard."""

    def __init__(self) -> None:
        self.extend_metadata = ExtendMetadata()
        self.length_kernel = LengthKernel()
        self.queries = QueriesInPlace()
        self.verify_schedule = VerifySchedule()
