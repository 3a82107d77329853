"""0003: Accept rates over the proposed drafts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.patch_checks.parts import (
    LADDER,
    adaptive_worker,
    logged,
    over_the_wire,
    published,
    request,
    result_processor,
    verify,
)
from tests.patch_checks.registry import kept, repaired


@repaired
def a_response_counts_the_drafts_that_were_proposed() -> None:
    with published():
        processor = result_processor(adaptive_worker(launch_steps=3))
        req = request()
        verify(processor, [req], steps=3, correct=3)
        verify(processor, [req], steps=1, correct=0)
        verify(processor, [req], steps=1, correct=1)
        info = meta_info(req, completion_tokens=7)
        assert info["spec_num_proposed_drafts"] == 5, f"3 + 1 + 1 drafts were counted as {info}"
        assert info["spec_accept_rate"] == 4 / 5, f"4 of 5 drafts accepted were reported as {info}"


@repaired
def a_response_without_drafts_reports_none() -> None:
    config = {**LADDER, "1": {"candidate_steps": [0, 1]}}
    launched = {"speculative_num_steps": 1, "speculative_num_draft_tokens": 2}
    with published(**launched):
        processor = result_processor(adaptive_worker(config, launch_steps=1))
        req = request()
        verify(processor, [req], steps=0, correct=0)
        info = meta_info(req, completion_tokens=1, **launched)
        found = (info["spec_num_proposed_drafts"], info["spec_accept_rate"], info["spec_accept_length"])
        assert found == (0, 0.0, 1.0), f"a request of one zero-step round reported {info}"


@repaired
def the_scheduler_reports_the_rate_of_the_rounds_since_the_last_report() -> None:
    with published():
        worker = adaptive_worker(launch_steps=3)
        processor = result_processor(worker)
        for _ in range(2):
            verify(processor, [request(), request()], steps=3, correct=3)
        worker.apply_runtime_state(worker.adaptive_controller._states[1])  # the width at the time of the report
        assert reported_rate(processor) == "1.00", "every draft was accepted"
        verify(processor, [request()], steps=1, correct=0)
        assert reported_rate(processor) == "0.00", "no draft was accepted since the last report"


@kept
def static_speculation_reports_as_before() -> None:
    with published(speculative_adaptive=False, speculative_num_draft_tokens=4):
        worker = SimpleNamespace(on_verify_complete_cpu=lambda *args, **kwargs: None)
        processor = result_processor(worker)
        req = request()
        # Some algorithms report a width other than the published one in their results.
        verify(processor, [req], steps=2, correct=2)
        verify(processor, [req], steps=2, correct=1)
        info = meta_info(req, completion_tokens=5, speculative_adaptive=False)
        assert (info["spec_num_proposed_drafts"], info["spec_accept_rate"]) == (6, 0.5), info
        assert reported_rate(processor) == "0.50"


def meta_info(req: Any, completion_tokens: int, **launched: Any) -> dict[str, Any]:
    """Return a response's meta info after every process that its counts pass through; *launched*: as published."""
    from sglang.srt.managers.detokenizer_manager import DetokenizerManager
    from sglang.srt.managers.multi_tokenizer_mixin import _handle_output_by_index
    from sglang.srt.managers.schedule_batch import FINISH_LENGTH
    from sglang.srt.managers.scheduler_components.output_streamer import _GenerationStreamAccumulator
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    req.output_ids.extend([1] * completion_tokens)
    req.finished_reason, req.finished_len = FINISH_LENGTH(completion_tokens), completion_tokens
    stream = _GenerationStreamAccumulator(
        return_logprob=False,
        return_hidden_states=False,
        return_routed_experts=False,
        return_indexer_topk=False,
        spec_algorithm=SpeculativeAlgorithm.from_string("EAGLE3"),
        disaggregation_mode=None,
        default_stream_interval=1,
        default_force_stream_interval=1,
        get_cached_tokens_details=lambda req: None,
        is_request_level_customized_info_key=lambda key: False,
        current_weight_version="default",
    )
    stream.accept(req=req)
    sent = stream.to_payload(dp_rank=0, is_idle_batch=False)
    received = over_the_wire(sent)
    detokenizer = object.__new__(DetokenizerManager)
    detokenizer._decode_batch_token_id_output = lambda recv_obj: [""]
    text = _handle_output_by_index(detokenizer.handle_batch_token_id_out(received), 0)
    info: dict[str, Any] = {}
    with published(**launched):  # the tokenizer process has its own configuration, which no switch reaches
        TokenizerManager._calculate_spec_decoding_metrics(object.__new__(TokenizerManager), info, text, 0)
    return info


def reported_rate(processor: Any) -> str:
    """Return the accept rate in the scheduler's next decode line."""
    batch = SimpleNamespace(reqs=[], forward_iter=1)
    with logged() as lines:
        processor.metrics_reporter.report_decode_stats(False, running_batch=batch)
    return lines[-1].partition("accept rate: ")[2].partition(",")[0]
