"""What a tier's attention backend of the target carries."""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.repair_checks.parts import published


def a_tiers_backend_carries_its_names_and_the_runners_translator() -> None:
    from sglang.srt.layers.attention.base_attn_backend import AttentionBackend
    from sglang.srt.mem_cache.kv_index_translator import KVIndexTranslator
    from sglang.srt.model_executor.model_runner import ModelRunner
    from sglang.srt.model_executor.model_runner_components import attention_backend_setup

    class Backend(AttentionBackend):  # type: ignore[misc]
        """A backend that computes nothing."""

    Backend.__abstractmethods__ = frozenset()

    def build(**_: Any) -> Any:
        return Backend()

    runner = object.__new__(ModelRunner)
    runner.is_draft_worker, runner.draft_attention_backend = False, None
    runner.prefill_attention_backend_str = runner.decode_attention_backend_str = "fa3"
    runner.kv_index_translator = object.__new__(KVIndexTranslator)
    with ExitStack() as stack:
        stack.enter_context(published(device="cpu", attention_backend="fa3"))
        stack.enter_context(mock.patch.object(attention_backend_setup, "_build_resolved_backend", build))
        backend = runner._get_attention_backend(init_new_workspace=True)
    carried = SimpleNamespace(
        prefill=backend.prefill_attention_backend_str, decode=backend.decode_attention_backend_str
    )
    assert (carried.prefill, carried.decode) == ("fa3", "fa3"), f"the backend names {carried}"
    assert backend.kv_index_translator is runner.kv_index_translator, "the backend has no translator"
