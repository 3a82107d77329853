"""The families, the most used ones first: a shape, its draft, and the arguments that its published lines carry."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.architectures import shapes
from benchmarks.architectures.shapes import Shape

OWN_LAYERS = None
"""Draft of a family whose checkpoint holds its draft layers: SGLang reads them from the target's folder. NGRAM needs no
draft either."""

LAUNCH_STEPS = 3
CHAIN = (
    *("--speculative-eagle-topk", "1", "--speculative-num-steps", str(LAUNCH_STEPS)),
    *("--speculative-num-draft-tokens", str(LAUNCH_STEPS + 1)),
)


@dataclass(frozen=True)
class Family:
    """One architecture with the draft that its published lines name."""

    name: str
    models: str
    """Published models of this architecture."""

    algorithm: str
    draft_kind: str
    target: Shape
    draft: Shape | None = OWN_LAYERS
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    needs: str = ""
    """What this family compiles or asks for beside Triton and prebuilt kernels."""

    launch: tuple[str, ...] = CHAIN
    """What an adaptive server is started with for its drafts."""

    depths: tuple[int, ...] = (0, 1, 2, 3, 5)
    warm_up: bool | None = None
    """As in the adaptive configuration: None warms up on a GPU alone."""

    static: tuple[str, ...] = ()
    """What SGLang's own server of static speculation at the deepest is started with; without it there is none."""


def _eagle3(name: str, models: str, target: Shape, **more: object) -> Family:
    return Family(name, models, "EAGLE3", "EAGLE-3", target, shapes.eagle3_of(target), **more)  # type: ignore[arg-type]


FA3 = ("--attention-backend", "fa3")
TRITON = ("--attention-backend", "triton")
FLASHINFER = ("--attention-backend", "flashinfer")
HYBRID = (*FA3, "--max-mamba-cache-size", "80")
NEMOTRON = (*HYBRID, "--moe-runner-backend", "triton")
"""Without it SGLang takes FlashInfer's CUTLASS experts, which nvcc compiles for minutes at the first start."""

WITHOUT_CURE = {"BENCHMARK_ARCHITECTURES_MAMBA2": "uncured"}

FAMILIES: tuple[Family, ...] = (
    Family("deepseek-v3", "DeepSeek-V3, R1, V3.1", "EAGLE", "NextN", shapes.DEEPSEEK_V3, arguments=FA3),
    Family("qwen3-next", "Qwen3-Next-80B-A3B", "NEXTN", "MTP", shapes.QWEN3_NEXT, arguments=HYBRID),
    Family("glm-4-moe", "GLM-4.5, 4.6, 4.7", "EAGLE", "NextN", shapes.GLM_4_MOE, arguments=FA3),
    _eagle3("gpt-oss", "gpt-oss-20b, 120b", shapes.GPT_OSS, arguments=FA3),
    Family("nemotron-h", "Nemotron-3 Super, Ultra", "NEXTN", "MTP", shapes.NEMOTRON_H, arguments=NEMOTRON),
    Family(
        "nemotron-h-uncured",
        "Nemotron-3, without this package's repair",
        *("NEXTN", "MTP", shapes.NEMOTRON_H),
        arguments=NEMOTRON,
        variables=WITHOUT_CURE,
    ),
    _eagle3("llama", "Llama 3.x", shapes.LLAMA, arguments=FA3),
    Family("qwen3.6-moe", "Qwen3.6-35B-A3B, Qwen3.5-397B-A17B", "NEXTN", "MTP", shapes.QWEN36_MOE, arguments=HYBRID),
    _eagle3("qwen3-moe", "Qwen3-30B-A3B", shapes.QWEN3_MOE, arguments=FA3),
    Family("mimo", "MiMo-7B", "EAGLE", "MTP", shapes.MIMO, arguments=FA3),
    Family("mimo-v2", "MiMo-V2-Flash, V2.5", "EAGLE", "multi-layer MTP", shapes.MIMO_V2, arguments=FA3),
    Family("step-3.5", "Step-3.5-Flash", "EAGLE", "multi-layer MTP", shapes.STEP_35, arguments=FA3),
    Family("kimi-k2", "Kimi-K2.x (text)", "EAGLE3", "EAGLE-3", shapes.KIMI_K2, shapes.KIMI_K2_EAGLE3, arguments=FA3),
    _eagle3("llama-4", "Llama-4-Scout", shapes.LLAMA_4, arguments=FA3),
    _eagle3("minimax-m2", "MiniMax-M2, M2.5", shapes.MINIMAX_M2, arguments=FA3),
    _eagle3("qwen3", "Qwen3-8B, 14B, 32B", shapes.QWEN3, arguments=FA3),
    Family("qwen3.5", "Qwen3.5-27B, Qwen3.6-27B", "NEXTN", "MTP", shapes.QWEN35, arguments=HYBRID),
    Family(
        "deepseek-v3.2",
        "DeepSeek-V3.2, GLM-5.x (sparse attention)",
        *("EAGLE", "NextN", shapes.DEEPSEEK_V32),
        needs="DeepGEMM compiles the indexer's logits with nvcc",
    ),
    Family(
        "gemma-4",
        "Gemma-4",
        *("EAGLE", "Frozen-KV MTP", shapes.GEMMA_4, shapes.GEMMA_4_ASSISTANT),
        arguments=TRITON,
    ),
    _eagle3("llama-triton", "Llama 3.x, Triton backend", shapes.LLAMA, arguments=TRITON),
    _eagle3(
        "llama-flashinfer",
        "Llama 3.x, FlashInfer backend",
        shapes.LLAMA,
        arguments=FLASHINFER,
        needs="nvcc compiles FlashInfer's kernels, for minutes at the first start",
    ),
    Family(
        "standalone",
        "Qwen2.5-7B-Instruct and other dense models",
        *("STANDALONE", "a smaller model", shapes.LLAMA, shapes.LLAMA_CUT),
        arguments=FA3,
    ),
    Family(
        "ngram",
        "Qwen2.5-7B-Instruct and other dense models",
        *("NGRAM", "earlier text", shapes.LLAMA),
        arguments=FA3,
        launch=(),
        depths=(0, 3, 7, 11, 15),
        static=("--speculative-num-draft-tokens", "16"),
    ),
)


def named(names: list[str]) -> tuple[Family, ...]:
    """Return the families of *names*, all without names. Raises ValueError for an unknown one."""
    known = {family.name: family for family in FAMILIES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"unknown family {', '.join(unknown)}; known: {', '.join(known)}")
    return tuple(known[name] for name in names) or FAMILIES
