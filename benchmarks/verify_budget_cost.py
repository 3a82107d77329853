"""Time ranking, packing, ragged verify attention, spreading and a draft step on a GPU, without a server.

    python -m benchmarks.verify_budget_cost --shape llama8b --output FILE

Needs a CUDA device and sgl-kernel (fa3). Shapes are the full-size ones of harness/shapes.py, a target with its EAGLE-3
draft; weights and keys are random. Each time is the median of replays of a CUDA graph.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.results import Report, command_parser
from benchmarks.harness.shapes import TARGETS, draft_of

STEPS = 7
BUDGETS = (1, 2, 3)
BATCHES = (1, 16, 32, 64, 128)
CONTEXTS = (1_000, 4_000)
REPLAYS = 60
TENSOR = {"device": "cuda", "dtype": torch.bfloat16}


@dataclass(frozen=True)
class Heads:
    """An attention layer's heads on one GPU."""

    queries: int
    keys: int
    width: int


@dataclass(frozen=True)
class Shape:
    """The properties of a target and its draft that determine the times, on one GPU of *tp*."""

    layers: int
    heads: Heads
    hidden: int
    vocabulary: int
    draft_heads: Heads
    draft_inner: int
    draft_vocabulary: int

    @classmethod
    def of(cls, name: str, tp: int) -> Shape:
        target, draft = TARGETS[name], draft_of(TARGETS[name])
        return cls(
            target["num_hidden_layers"], _heads(target, tp), target["hidden_size"], target["vocab_size"],
            _heads(draft, tp), draft["intermediate_size"] // tp, draft["draft_vocab_size"] // tp,
        )  # fmt: skip

    @property
    def captured(self) -> int:
        """Width of the hidden states that an EAGLE-3 draft reads of each verified token."""
        return 3 * self.hidden


def _heads(config: dict[str, Any], tp: int) -> Heads:
    return Heads(config["num_attention_heads"] // tp, config["num_key_value_heads"] // tp, config["head_dim"])


def replay_ms(work: Callable[[], Any], inner: int = 1) -> float:
    """Return the median milliseconds of one *work*; a graph holds *inner* of them."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(inner):
            work()
    times = []
    for _ in range(REPLAYS):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / inner)
    return statistics.median(times)


def ragged(batch: int, budget: int) -> Tensor:
    """Return int32 [batch] query lengths of 1 to STEPS + 1 tokens, batch * (budget + 1) in total."""
    scores = torch.rand(batch, STEPS, generator=torch.Generator().manual_seed(batch)).pow(0.5).cumprod(1)
    kept = torch.zeros(batch * STEPS, dtype=torch.int32)
    kept[scores.flatten().topk(batch * budget).indices] = 1
    return kept.view(batch, STEPS).sum(1, dtype=torch.int32) + 1


def attention(heads: Heads, lengths: Tensor, context: int) -> Callable[[Tensor], Tensor]:
    """Return one layer's attention, over *context* tokens per request, with *lengths* queries each, int32 [batch].

    It takes the queries [tokens, heads, head width], request by request.
    """
    from sgl_kernel.flash_attn import flash_attn_with_kvcache

    batch, most = len(lengths), int(lengths.max())
    slots = batch * (context + STEPS + 1)
    keys, values = (torch.randn(slots, 1, heads.keys, heads.width, **TENSOR) for _ in range(2))
    table = torch.randperm(slots, device="cuda", dtype=torch.int32).view(batch, -1)
    lengths = lengths.cuda()
    seen = lengths + context
    sums = (part.cumsum(0, dtype=torch.int32) for part in (lengths, seen))
    starts, key_starts = (torch.nn.functional.pad(one, (1, 0)) for one in sums)

    def attend(queries: Tensor) -> Tensor:
        return flash_attn_with_kvcache(
            q=queries, k_cache=keys, v_cache=values, page_table=table, cache_seqlens=seen, cu_seqlens_q=starts,
            cu_seqlens_k_new=key_starts, max_seqlen_q=most, softmax_scale=heads.width**-0.5, causal=True,
        )  # fmt: skip

    return attend


def attention_ms(shape: Shape, lengths: Tensor, context: int) -> float:
    """Return the milliseconds of all layers' verify attentions whose requests have *lengths* queries, int32 [batch]."""
    attend = attention(shape.heads, lengths, context)
    queries = torch.randn(int(lengths.sum()), shape.heads.queries, shape.heads.width, **TENSOR)
    return shape.layers * replay_ms(lambda: attend(queries), inner=shape.layers)


def packing_ms(shape: Shape, batch: int, budget: int) -> dict[str, float]:
    """Return the milliseconds of ranking the drafts, packing the kept ones, and spreading the results."""
    tokens = batch * (budget + 1)
    top = torch.rand(batch, STEPS, device="cuda")
    ids, places, slots = (torch.zeros(batch, STEPS + 1, dtype=torch.int64, device="cuda") for _ in range(3))
    hidden = torch.randn(tokens, shape.captured, **TENSOR)
    logits = torch.randn(tokens, shape.vocabulary, **TENSOR)
    wide = torch.zeros(batch * (STEPS + 1), shape.captured, **TENSOR)
    wide_logits = torch.zeros(batch * (STEPS + 1), shape.vocabulary, **TENSOR)
    chosen = torch.full((batch * (STEPS + 1),), -1, dtype=torch.int64, device="cuda")
    mask = torch.ones(batch, STEPS + 1, dtype=torch.bool, device="cuda")
    index = torch.arange(batch * (STEPS + 1), device="cuda")
    where = torch.arange(tokens, device="cuda")
    starts = torch.zeros(batch + 1, dtype=torch.int32, device="cuda")

    def rank() -> None:
        best = top.cumprod(1).flatten().topk(batch * budget, sorted=False).indices
        mask[:, 1:] = (
            torch.zeros(batch * STEPS, dtype=torch.bool, device="cuda").index_fill_(0, best, True).view(batch, -1)
        )

    def pack() -> None:
        flat = mask.flatten()
        starts[1:] = mask.sum(1, dtype=torch.int32).cumsum(0)
        # The first kept places, in order. The host knows their number, so nothing waits for the device.
        order = torch.where(flat, index, index + index.numel()).topk(tokens, largest=False, sorted=True).values
        where.copy_(order)
        for each in (ids, places, slots):
            each.flatten()[where]

    def spread() -> None:
        wide.index_copy_(0, where, hidden)
        chosen.index_copy_(0, where, logits.argmax(1))

    def spread_logits() -> None:
        wide_logits.index_copy_(0, where, logits)

    rank(), pack()
    assert int(mask.sum()) == tokens
    plain = replay_ms(lambda: logits.argmax(1))  # a rectangle also needs it
    found = {"rank": replay_ms(rank), "pack": replay_ms(pack), "spread": replay_ms(spread) - plain}
    return {**found, "spread of logits, when sampled": replay_ms(spread_logits)}


def draft_step_ms(shape: Shape, batch: int, context: int) -> float:
    """Return the milliseconds of one draft step of an EAGLE-3 layer for *batch* requests."""

    def matrix(rows: int, columns: int) -> Tensor:
        return torch.randn(columns, rows, **TENSOR) * 0.02

    heads, hidden, inner = shape.draft_heads, shape.hidden, shape.draft_inner
    size = heads.queries * heads.width
    qkv, out = matrix(2 * hidden, size + 2 * heads.keys * heads.width), matrix(size, hidden)
    gate_up, down, head = matrix(hidden, 2 * inner), matrix(inner, hidden), matrix(hidden, shape.draft_vocabulary)
    both = torch.randn(batch, 2 * hidden, **TENSOR)
    attend = attention(heads, torch.ones(batch, dtype=torch.int32), context)

    def step() -> None:
        query = torch.nn.functional.linear(both, qkv)[:, :size].reshape(batch, heads.queries, heads.width).contiguous()
        attended = attend(query)
        state = torch.nn.functional.linear(attended.reshape(batch, size), out)
        gate, up = torch.nn.functional.linear(state, gate_up).chunk(2, 1)
        state = state + torch.nn.functional.linear(torch.nn.functional.silu(gate) * up, down)
        torch.nn.functional.linear(state, head).float().softmax(1).max(1)

    return replay_ms(step, inner=STEPS)


def measured(shape: Shape, batch: int, context: int) -> dict[str, Any]:
    """Return every figure of *shape* for *batch* requests of *context* tokens, in milliseconds."""
    cell: dict[str, Any] = {
        "batch": batch, "context": context, "draft_step": draft_step_ms(shape, batch, context)
    }  # fmt: skip
    for budget in BUDGETS:
        same = torch.full((batch,), budget + 1, dtype=torch.int32)
        cell[f"budget {budget}"] = {
            "rectangle": attention_ms(shape, same, context),
            "ragged": attention_ms(shape, ragged(batch, budget), context),
            **packing_ms(shape, batch, budget),
        }
    return cell


def main(argv: Sequence[str]) -> int:
    """Measure every batch size and context, and write one JSON file."""
    given = parser().parse_args(argv)
    shape, device = Shape.of(given.shape, given.tp), torch.cuda.get_device_name()
    report = Report(given.output, "verify_budget_cost", argv, device=device, steps=STEPS, unit="ms", cells=[])
    for batch in BATCHES:
        for context in CONTEXTS:
            report.content["cells"].append(measured(shape, batch, context))
            report.write()
            report.say(json.dumps(report.content["cells"][-1]))
    return 0


def parser() -> argparse.ArgumentParser:
    made = command_parser("verify_budget_cost", __doc__)
    made.add_argument("--shape", choices=tuple(TARGETS), default="llama8b")
    made.add_argument("--tp", type=int, default=1, help="tensor parallel size; one rank is measured")
    made.add_argument("--output", type=Path, required=True)
    return made


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
