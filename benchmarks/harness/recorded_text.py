"""SGLang plugin of the benchmarks: the target repeats a recording, and drafts are right as far as recorded.

A request names a text of the file (``sampling_params.custom_params``). At each position the logit of the recorded token
is raised above all others, so a server with any weights generates the text with any draft; drafts that the server looks
up in the request are right or wrong as they would be there. With replayed drafts, the first ones of a chain are those
of the text, as many as were recorded at that position, and the others are wrong. Draft, verify, draft extend,
scheduling and HTTP are the real path.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness import internals, plugin
from benchmarks.traces import texts

FILE = "BENCHMARK_RECORDED_TEXT"
"""Environment variable: the recorded requests."""
OWN_DRAFTS = "BENCHMARK_RECORDED_TEXT_OWN_DRAFTS"
"""Environment variable: "1" leaves the drafts to the draft model."""
TEXT = "text"
"""Key in a request's ``custom_params``: the number of its text."""
RAISED = 1e4
SLACK = 64
"""Positions past a text, for rounds that run over its end."""


def environment(path: Path, folder: Path, own_drafts: bool) -> dict[str, str]:
    """Return the variables of a server that replays *path*; writes the plugin's metadata into *folder*."""
    variables = {FILE: str(path), **plugin.environment(folder, "benchmark_recorded_text", __name__)}
    return {**variables, **({OWN_DRAFTS: "1"} if own_drafts else {})}


def register() -> None:
    """Entry point: act in a scheduler process that has the file's variable."""
    if FILE not in os.environ or not plugin.in_scheduler():
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    texts = Recorded(Path(os.environ[FILE]))
    HookRegistry.register(internals.SHORT_RESULT, texts.before_short_result, HookType.BEFORE)
    HookRegistry.register(internals.ROUND_SAMPLE, texts.before_sample, HookType.BEFORE)
    if os.environ.get(OWN_DRAFTS) != "1":
        HookRegistry.register(internals.ROUND_DRAFT, texts.draft, HookType.AROUND)


class Recorded:
    """The texts of a scheduler's requests, on its device."""

    def __init__(self, path: Path) -> None:
        found = texts.load(path)
        self._texts = [found.of(request) for request in range(len(found.prompt))]
        self._rids: list[str] = []
        self._table: tuple[torch.Tensor, torch.Tensor] | None = None

    def before_short_result(self, verifier: Any, batch: Any, verify_input: Any, output: Any, plan: Any) -> None:
        """Raise the recorded tokens of a verify pass that was replayed from its graph."""
        self._raise(batch, output.next_token_logits)

    def before_sample(
        self, rounds: Any, accept: Any, verify_input: Any, batch: Any, logits_output: Any, *_: Any, **__: Any
    ) -> None:
        """The same for a verify pass that SGLang has prepared."""
        self._raise(batch, logits_output.next_token_logits)

    def draft(
        self, draft: Callable[..., Any], rounds: Any, original: Any, drafter: Any, batch: Any, **more: Any
    ) -> Any:
        """Draft, then insert the recorded drafts; looked-up drafts stay."""
        from sglang_adaptive.sglang_plugin.stages.lookups.rounds import LookupRounds

        made = draft(rounds, original, drafter, batch, **more)
        steps, table = drafter.speculative_num_steps, self._of(batch)
        if table is None or any(lookups.live for lookups in rounds.of(LookupRounds)):
            return made
        texts, right = table
        known = batch.seq_lens.clamp(max=texts.shape[1] - SLACK)
        each = torch.arange(steps, device=known.device)
        truth = texts.gather(1, known[:, None] + 1 + each)
        wrong = each >= right.gather(1, known[:, None])
        made.draft_token.view(len(known), -1)[:, 1:] = torch.where(wrong, truth ^ 1, truth)
        return made

    def _raise(self, batch: Any, logits: torch.Tensor) -> None:
        table = self._of(batch)
        if table is None:
            return
        texts, requests = table[0], batch.seq_lens.shape[0]
        width = logits.shape[0] // requests
        known = batch.seq_lens.clamp(max=texts.shape[1] - SLACK)
        said = texts.gather(1, known[:, None] + 1 + torch.arange(width, device=known.device))
        logits.scatter_(1, said.view(-1, 1), RAISED)

    def _of(self, batch: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the requests' texts and the accepted drafts along them, [b, places]; None for other requests."""
        rids = [req.rid for req in batch.reqs]
        if rids != self._rids:
            self._rids, named = rids, [(req.sampling_params.custom_params or {}).get(TEXT) for req in batch.reqs]
            some = [self._texts[at] for at in named if at is not None]
            self._table = self._placed(some, batch.device) if len(some) == len(rids) else None
        return self._table

    def _placed(
        self, some: list[tuple[list[int], list[int], list[int]]], device: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        width = max(len(prompt) + len(output) for prompt, output, _ in some) + SLACK
        texts, right = (torch.zeros((len(some), width), dtype=torch.int64) for _ in range(2))
        for row, (prompt, output, accepted) in enumerate(some):
            texts[row, : len(prompt) + len(output)] = torch.tensor(prompt + output)
            right[row, len(prompt) : len(prompt) + len(output)] = torch.tensor(accepted)
        return texts.to(device), right.to(device)
