"""Computes accept rates over the drafts that were actually proposed.

SGLang 0.5.23 divides accepted drafts by rounds x one number of steps: the live one in the scheduler's log and gauges,
the one at launch in a response's meta_info. Here each result reports its proposed drafts in ``cap_lens``, SGLang's
field for how many drafts each request of a round may propose, which EAGLE leaves empty.
"""

from __future__ import annotations

from typing import Any

from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.sglang_plugin.stage import Rest, Stage


class Proposed:
    """The drafts of each request, with the ``tolist`` of the tensor that SGLang expects in ``cap_lens``."""

    __slots__ = ("_drafts", "_requests")

    def __init__(self, drafts: int, requests: int) -> None:
        self._drafts, self._requests = drafts, requests

    def tolist(self) -> list[int]:
        """Return one number per request."""
        return [self._drafts] * self._requests


class ProposedDrafts(Stage):
    """Notes how many drafts each round proposed, and reports by that."""

    def arrived(self, note: RoundNote, result: Any, batch: Any) -> None:
        """Note the drafts of each request of *batch* in *result*."""
        if result.cap_lens is None:
            result.cap_lens = Proposed(note.steps, len(batch.reqs))

    def report_decode(self, rest: Rest, reporter: Any, *args: Any, **kwargs: Any) -> None:
        """Report, divided by the mean draft tokens of the rounds since the last report."""
        rounds = reporter.spec_num_forward_ct
        if reporter.forward_ct_decode % reporter.decode_log_interval or rounds == 0:  # SGLang reports nothing this time
            rest(reporter, *args, **kwargs)
            return
        from sglang.srt.runtime_context import get_spec

        proposed = reporter.spec_num_cap_tokens
        reporter.spec_num_cap_tokens = 0  # else the log would report the drafts as a cap
        try:
            with get_spec().override(speculative_num_draft_tokens=proposed / rounds + 1):
                rest(reporter, *args, **kwargs)
        finally:
            if reporter.spec_num_forward_ct:  # nothing was reported this time: keep counting
                reporter.spec_num_cap_tokens = proposed


def correct_request_metrics(meta_info: dict[str, Any], recv_obj: Any, i: int) -> None:
    """Correct the rates in a response's meta_info by the drafts that the rounds of request *i* proposed."""
    proposed_by_request = getattr(recv_obj, "spec_num_cap_tokens", None)
    rounds_by_request = getattr(recv_obj, "spec_verify_ct", None)
    if not proposed_by_request or not rounds_by_request or not rounds_by_request[i]:
        return
    proposed, rounds = proposed_by_request[i], rounds_by_request[i]
    correct = recv_obj.spec_num_correct_drafts[i]
    # SGLang omits all of these for a server launched at zero steps.
    meta_info["spec_accept_rate"] = correct / proposed if proposed else 0.0
    meta_info["spec_accept_length"] = recv_obj.completion_tokens[i] / rounds
    meta_info["spec_num_correct_drafts"] = correct
    meta_info["spec_num_proposed_drafts"] = proposed
    meta_info["spec_verify_ct"] = rounds
    meta_info.pop("spec_cap_length", None)
    histogram = meta_info.pop("spec_cap_lens_histogram", None)
    if histogram is not None:
        meta_info["spec_draft_steps_histogram"] = histogram
