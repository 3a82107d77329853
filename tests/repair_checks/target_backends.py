"""What a tier's attention backend of the target carries."""

from __future__ import annotations

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

    runner = object.__new__(ModelRunner)
    runner.is_draft_worker, runner.draft_attention_backend = False, None
    runner.prefill_attention_backend_str = runner.decode_attention_backend_str = "fa3"
    runner.kv_index_translator = object.__new__(KVIndexTranslator)
    building = mock.patch.object(attention_backend_setup, "_build_resolved_backend", lambda **_: Backend())
    with published(device="cpu", attention_backend="fa3"), building:
        backend = runner._get_attention_backend(init_new_workspace=True)
    carried = backend.prefill_attention_backend_str, backend.decode_attention_backend_str
    assert carried == ("fa3", "fa3"), f"the backend names {carried}"
    assert backend.kv_index_translator is runner.kv_index_translator, "the backend has no translator"
