"""0020: Penalties apply in one order in every process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from unittest import mock

from tests.patch_checks.parts import published, request
from tests.patch_checks.registry import repaired


@dataclass
class _Batch:
    reqs: list[Any]
    device: str = "cpu"


@repaired
def penalties_that_add_come_before_those_that_scale() -> None:
    from sglang.srt.sampling import penaltylib
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    batch = _Batch([request()])
    name = "BatchedPenalizerOrchestrator"
    with published(), mock.patch.object(penaltylib, name, wraps=getattr(penaltylib, name)) as made:
        SamplingBatchInfo.from_schedule_batch(batch, 8)
    given = made.call_args.kwargs["penalizers"]
    assert not isinstance(given, set), "the order of a set of classes is that of their addresses"
    scaling = [kind.is_multiplicative for kind in given]
    assert scaling == sorted(scaling), f"{given} scales before it adds"
