"""Time the verify step of a round: this package's, which accepts what SGLang's sampler draws, and SGLang's own.

    python -m benchmarks.exact_verify [--device cuda] [--vocabulary N] [--steps N] [--json F]

Each round has its own logits, one row of the vocabulary per token of a chain, as a target produces them. Times are
medians of whole rounds from the first launch to the end of the last kernel, without copies of the logits. The time that
the scheduler's thread is busy is in parentheses. "prepare" is the work of SGLang and this package before the round:
counting penalties. A greedy round without penalties goes to SGLang, and its line shows the time of that check. On a CPU
this needs the environment of ``serve-cpu``: SGLang has no kernels there, and its own verify is the CPU engine's.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from benchmarks.harness.results import command_parser, origin, write

BATCHES = (1, 16, 64)
PENALTIES = {"frequency_penalty": 0.5, "presence_penalty": 0.3}
MIXES: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top-k, top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.9},
    "min-p": {"temperature": 0.8, "min_p": 0.05},
    "greedy, penalties": {"temperature": 0.0, **PENALTIES},
    "top-p, penalties": {"temperature": 0.8, "top_p": 0.9, **PENALTIES},
    "repetition": {"temperature": 0.0, "repetition_penalty": 1.2},
}
PROMPT, WRITTEN = 1000, 200


class Request(SimpleNamespace):
    """The parts of a request that SGLang's sampling and this package read."""

    __hash__ = object.__hash__

    def __init__(self, vocabulary: int, seed: int, **sampling: Any) -> None:
        from sglang.srt.sampling.sampling_params import SamplingParams

        drawn = torch.Generator().manual_seed(seed)
        parameters = SamplingParams(max_new_tokens=9, **sampling)
        parameters.normalize(None)
        super().__init__(
            sampling_params=parameters, origin_input_ids=[0] * PROMPT, retraction_count=0,
            output_ids=torch.randint(vocabulary, (WRITTEN,), generator=drawn).tolist(), eos_token_ids={2},
            tokenizer=SimpleNamespace(additional_stop_token_ids=None, eos_token_id=2), custom_logit_processor=None,
            return_sampling_mask=False, sampling_logprobs_mode=None,
        )  # fmt: skip


class Batch(SimpleNamespace):
    """A decode batch of *size* requests, from which SGLang's sampling parameters are made."""

    def __init__(self, size: int, vocabulary: int, device: str, **sampling: Any) -> None:
        from sglang.srt.model_executor.forward_batch_info import ForwardMode
        from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

        super().__init__(
            reqs=[Request(vocabulary, seed, **sampling) for seed in range(size)], device=device, return_logprob=False,
            forward_mode=ForwardMode.TARGET_VERIFY, seq_lens=torch.full((size,), PROMPT + WRITTEN - 1, device=device),
            req_pool_indices=torch.arange(size, device=device), has_grammar=False,
            req_to_token_pool=SimpleNamespace(req_to_token=torch.zeros(size, 1)),
        )  # fmt: skip
        self.kept = SamplingBatchInfo.from_schedule_batch(self, vocabulary)
        self.sampling_info = self.kept

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Give the round a copy of the parameters, as SGLang's scheduler does."""
        self.sampling_info = self.kept.copy_for_forward()
        yield
        self.sampling_info = self.kept


def chain(batch: Batch, width: int, vocabulary: int, likeliest: torch.Tensor) -> Any:
    """Return a verify input whose drafts are the likeliest tokens [requests, width] for the first half of the chain."""
    from sglang.srt.speculative.eagle_info import EagleVerifyInput

    requests, device = len(batch.reqs), batch.device
    drafts = torch.randint(vocabulary, (requests, width), device=device)
    drafts[:, 1 : 1 + width // 2] = likeliest[:, : width // 2]
    nodes = torch.arange(width, device=device)
    return EagleVerifyInput(
        draft_token=drafts.flatten(), custom_mask=None, positions=(batch.seq_lens[:, None] + nodes).flatten(),
        retrieve_index=torch.arange(requests * width, device=device).view(requests, width),
        retrieve_next_token=torch.where(nodes + 1 < width, nodes + 1, -1).repeat(requests, 1),
        retrieve_next_sibling=torch.full((requests, width), -1, device=device), retrieve_cum_len=None,
        spec_steps=width - 1, topk=1, draft_token_num=width, capture_hidden_mode=None, seq_lens_sum=None,
        seq_lens_cpu=None,
    )  # fmt: skip


@contextmanager
def running(device: str, **fields: Any) -> Iterator[Any]:
    """Yield a worker with SGLang's sampler, under a published configuration on one rank of *device*."""
    from sglang.srt.runtime_context import get_context, get_parallel

    launch = {"speculative_num_steps": 3, "speculative_num_draft_tokens": 4, "speculative_eagle_topk": 1}
    adaptive = {"speculative_algorithm": "EAGLE3", "speculative_adaptive": True, "device": device}
    backend = {"sampling_backend": "flashinfer" if device == "cuda" else "pytorch"}
    alone = SimpleNamespace(world_size=1, device_group=None)
    with (
        get_context().override_server_args(**adaptive, **launch, **backend, **fields),
        get_parallel().override(tp_group=alone),
    ):
        from sglang.srt.layers.sampler import Sampler

        runner = SimpleNamespace(sampler=Sampler())
        yield SimpleNamespace(target_worker=SimpleNamespace(model_runner=runner))


def measured(work: Callable[[Any], Any], inputs: Callable[[], Any], device: str, rounds: int) -> dict[str, float]:
    """Return the median microseconds of a round and of its host part; *inputs* are created before timing starts."""
    wait = torch.cuda.synchronize if device == "cuda" else (lambda: None)
    whole, host = [], []
    for number in range(rounds + 5):
        made = inputs()
        wait()
        begin = time.perf_counter()
        work(made)
        launched = time.perf_counter()
        wait()
        if number >= 5:
            host.append(launched - begin)
            whole.append(time.perf_counter() - begin)
    return {"us": statistics.median(whole) * 1e6, "host_us": statistics.median(host) * 1e6}


def compare(worker: Any, size: int, width: int, vocabulary: int, device: str, rounds: int, sampling: Any) -> Any:
    """Return the times of both ways for a batch of *size* requests with *sampling*."""
    from sglang.srt.layers.logits_processor import LogitsProcessorOutput
    from sglang.srt.speculative import eagle_utils

    from sglang_adaptive.sglang_plugin.stages.exact.verify import ExactVerify

    batch, exact = Batch(size, vocabulary, device, **sampling), ExactVerify(worker)
    exact.guard.close = _raise  # type: ignore[method-assign]
    penalised = batch.kept.penalizer_orchestrator.is_required
    logits = torch.randn(size * width, vocabulary, device=device) * 2
    verify = chain(batch, width, vocabulary, logits.argmax(-1).view(size, width))

    def prepare_sglang(_: Any) -> None:
        if penalised:
            last = torch.tensor([req.output_ids[-1] for req in batch.reqs]).to(device, non_blocking=True)
            batch.kept.penalizer_orchestrator.cumulate_output_tokens(last)

    def prepare_exact(_: Any) -> None:
        if penalised:
            exact.count_penalties(_raise, batch)

    def accept_exact(output: Any) -> Any:
        found = exact.accepted(verify, batch, output, None, None)
        return accept_sglang(output) if found is None else found

    def accept_sglang(output: Any) -> Any:
        return eagle_utils.eagle_sample(verify, batch, output, None)

    def more_text() -> None:
        for req in batch.reqs:
            req.output_ids += [3, 5, 7]

    found = {"prepare sglang": measured(prepare_sglang, more_text, device, rounds)}
    found["prepare exact"] = measured(prepare_exact, more_text, device, rounds)
    with batch.forward():
        for name, work in (("sglang", accept_sglang), ("exact", accept_exact)):
            found[name] = measured(work, lambda: LogitsProcessorOutput(logits.clone()), device, rounds)
            kept = [work(LogitsProcessorOutput(logits.clone()))[1].float().mean().item() for _ in range(20)]
            found[name]["accept_length"] = statistics.fmean(kept)
    return found


def _raise(error: Any) -> None:
    raise RuntimeError("a part fell back to SGLang's") from error


def main(argv: Sequence[str]) -> int:
    """Print and write the times of all batches and mixes; returns the exit code."""
    parser = command_parser("exact_verify", __doc__)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--vocabulary", type=int, default=128256, help="size of the vocabulary")
    parser.add_argument("--steps", type=int, default=3, help="draft steps")
    parser.add_argument("--rounds", type=int, default=100, help="rounds per time")
    parser.add_argument("--json", type=Path, help="write the times to this file")
    args = parser.parse_args(argv)
    results: dict[str, Any] = {
        "provenance": origin("exact_verify", argv),
        "device": args.device,
        "steps": args.steps,
        "vocabulary": args.vocabulary,
        "times": {},
    }
    print(f"{args.steps} steps, {args.vocabulary} tokens in the vocabulary, {args.device}; microseconds (host)")
    print(f"{'requests, mix':28} {'prepare':>22} {'sglang':>20} {'exact':>20}  accept lengths")
    with running(args.device) as worker:
        if args.device == "cpu":
            from sglang.srt.speculative import eagle_utils

            from sglang_adaptive.lab.cpu_engine.plugin import _only_greedy_requests

            mock.patch.object(eagle_utils, "_verify_uses_greedy", _only_greedy_requests).start()
            eagle_utils.sampling_softmax = lambda logits, temperatures: torch.softmax(logits / temperatures, -1)
        for size in BATCHES:
            for mix, sampling in MIXES.items():
                found = compare(worker, size, args.steps + 1, args.vocabulary, args.device, args.rounds, sampling)
                results["times"][f"{size} {mix}"] = found
                cells = [f"{found[name]['us']:9.0f} ({found[name]['host_us']:6.0f})" for name in ("sglang", "exact")]
                prepare = f"{found['prepare sglang']['us']:9.0f} -> {found['prepare exact']['us']:7.0f}"
                lengths = f"{found['sglang']['accept_length']:.2f} {found['exact']['accept_length']:.2f}"
                print(f"{size:4d} {mix:23} {prepare:>22} {cells[0]:>20} {cells[1]:>20}  {lengths}", flush=True)
    if args.json is not None:
        write(args.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
