"""STANDALONE: a small model drafts for a larger one with the same vocabulary.

SGLang's worker is EAGLE's without a controller; its draft has its own embeddings and head and reads no hidden states.
The draft is a whole model, so its steps take longer than EAGLE's, and zero steps are best more often. The cost model
measures that like any round time.
"""

from __future__ import annotations

from typing import Any

from sglang.srt.speculative.standalone_worker_v2 import StandaloneWorkerV2

from sglang_adaptive.sglang_plugin.workers.own_rounds import begin_rounds


class AdaptiveStandaloneWorker(StandaloneWorkerV2):  # type: ignore[misc]  # SGLang's types are not followed
    """SGLang's worker with the controller that the methods inherited from EAGLE's worker use."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        begin_rounds(self)
