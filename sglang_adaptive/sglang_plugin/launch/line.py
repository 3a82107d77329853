"""What ``doctor`` says about a launch line: renamed flags, what it lacks to start, and whether it can adapt.

SGLang 0.5.23 checks some requirements of speculation while it resolves the arguments, which needs a device, and finds
others only once the model is loaded.
"""

from __future__ import annotations

import copy
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sglang_adaptive.sglang_plugin.launch import activation
from sglang_adaptive.sglang_plugin.setup import drafts_blocks, model_config


@dataclass(frozen=True, slots=True)
class Change:
    """A flag of published launch lines that SGLang 0.5.23 refuses, and its replacement."""

    flag: str
    """The flag in the line."""
    write: str | None
    """The replacement, without the flag's own values; None to leave the flag out."""
    why: str
    """What happened to the flag, as a phrase."""


# --cuda-graph-max-bs and --cuda-graph-bs now abbreviate a decode and a prefill flag each, and SGLang refuses them as
# ambiguous; both meant decode.
CHANGES = (
    Change("--cuda-graph-max-bs", "--cuda-graph-max-bs-decode", "renamed"),
    Change("--cuda-graph-bs", "--cuda-graph-bs-decode", "renamed"),
    Change("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy", "renamed"),
    Change("--nsa-prefill-backend", "--dsa-prefill-backend", "renamed"),
    Change("--nsa-decode-backend", "--dsa-decode-backend", "renamed"),
    Change("--disable-piecewise-cuda-graph", "--disable-prefill-cuda-graph", "renamed"),
    Change("--enable-deepep-moe", "--moe-a2a-backend deepep", "replaced"),
    Change("--prefill-round-robin-balance", None, "decode servers ask the prefill server for its rank since"),
)


def mend(arguments: Sequence[str]) -> tuple[list[str], list[Change]]:
    """Return *arguments* as SGLang 0.5.23 accepts them, and the changes, in the order of the line."""
    known = {change.flag: change for change in CHANGES}
    mended: list[str] = []
    changes: list[Change] = []
    for argument in arguments:
        flag, equals, value = argument.partition("=")
        change = known.get(flag)
        if change is None:
            mended.append(argument)
            continue
        changes.append(change)
        words = [] if change.write is None else change.write.split()
        mended.extend([*words[:-1], f"{words[-1]}{equals}{value}"] if words else [])
    return mended, changes


# -- what it lacks to start -------------------------------------------------------------------------------------------

_DRAFT = "add --speculative-draft-model-path DRAFT"
_WINDOWED = ("EAGLE", "EAGLE3", "NEXTN", "STANDALONE")
"""Algorithms whose draft steps SGLang gives a window on some attention backends."""


def missing(server_args: Any) -> str | None:
    """Return what ends a launch with *server_args* once its models are loaded, with a remedy; None if nothing does.

    Models that are not on this machine are assumed to be right.
    """
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

    drafts = _Drafts(server_args)
    algorithm, draft, name = drafts.algorithm, drafts.architecture, server_args.speculative_draft_model_path
    try:
        SpeculativeAlgorithm.from_string(algorithm or None)
    except ValueError as error:
        return f"{error}: a model's own MTP layers draft with --speculative-algorithm NEXTN"
    if algorithm == "EAGLE3" and (drafts.itself or _lacks(draft, "Eagle3", "Gemma4")):
        other = f"{name} is not an EAGLE-3 draft: name one, or use --speculative-algorithm EAGLE or STANDALONE"
        remedy = f"EAGLE3 drafts with a model that was trained for this one, {_DRAFT}" if drafts.itself else other
        return f"'{draft or 'the model'}' object has no attribute 'hot_token_id': {remedy}"
    if algorithm == "STANDALONE" and draft is not None and "Eagle" in draft:
        eagle = "EAGLE3" if "Eagle3" in draft else "EAGLE"
        hidden = "drafts from the target's hidden states, which STANDALONE does not have"
        return f"{name} {hidden}: --speculative-algorithm {eagle}"
    if algorithm == "FROZEN_KV_MTP" and (drafts.itself or _lacks(draft, "Gemma4")):
        return f"Frozen-KV MTP target view called before the model was bound: {_DRAFT}, an assistant of Gemma 4"
    return None


def refused(server_args: Any, adapts: bool) -> str | None:
    """Return why SGLang would refuse how *server_args*, parsed and not resolved, speculate; None if it would not.

    Runs SGLang's own checks as on a GPU, and keeps only what they say about the arguments, because the models or other
    resolution steps that they need may be missing here. *adapts* says whether the steps would be adaptive.
    """
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.arg_groups.overrides import declare_resolution
    from sglang.srt.arg_groups.parallel_hook import handle_deprecated_dp_attention
    from sglang.srt.speculative import spec_info

    if (server_args.speculative_algorithm or "").upper() == "DSPARK" and not Path(server_args.model_path).is_dir():
        return None  # SGLang would look for a draft next to the target on its hub
    asked = copy.deepcopy(server_args)
    steps, topk = asked.speculative_num_steps, asked.speculative_eagle_topk
    tokens = asked.speculative_num_draft_tokens
    if steps is None and adapts and not drafts_blocks(asked):  # the configuration has them
        asked.speculative_num_steps, asked.speculative_eagle_topk, asked.speculative_num_draft_tokens = 3, topk or 1, 4
    asked.speculative_adaptive, asked.speculative_adaptive_config = False, None
    asked.page_size = asked.page_size or 1
    try:
        if asked.device is None:
            declare_resolution(asked, __name__, device="cuda")
        handle_deprecated_dp_attention(asked)
        speculative_hook.handle_speculative_decoding(asked)
    except AssertionError:
        if steps is None and (topk, tokens) != (None, None):
            return (
                "SGLang asserts that topk and draft tokens are not given alone: add --speculative-num-steps, or leave "
                "out --speculative-eagle-topk and --speculative-num-draft-tokens"
            )
    except (ValueError, NotImplementedError) as error:
        file = traceback.extract_tb(error.__traceback__)[-1].filename
        by_sglang = file in (speculative_hook.__file__, spec_info.__file__)
        words = (str(error).strip().splitlines() or [""])[0]
        return words if by_sglang and "None" not in words else None
    except Exception:  # what the check needs is not here
        pass
    return None


def hint(server_args: Any) -> str | None:
    """Return what is wasteful in how a line drafts, although it starts; None if nothing is known."""
    drafts = _Drafts(server_args)
    if drafts.algorithm in ("EAGLE", "NEXTN"):
        if drafts.itself and drafts.target is not None and drafts.architecture == drafts.target:
            return f"SGLang knows no MTP layer of {drafts.target}: the whole model would draft for itself; {_DRAFT}"
        if drafts.architecture is not None and "Eagle3" in drafts.architecture:
            return "an EAGLE-3 draft: with --speculative-algorithm EAGLE3 more of its drafts are right"
    if drafts.algorithm == "STANDALONE" and drafts.itself:
        return f"the whole model would draft for itself; {_DRAFT}, a smaller model with the same tokens"
    return _of_window(server_args, drafts)


def _of_window(server_args: Any, drafts: _Drafts) -> str | None:
    """Return why SGLang's window for the draft does nothing on a line; None where it acts or is not asked for."""
    eagle3 = drafts.architecture is None or drafts.architecture == "LlamaForCausalLMEagle3"
    if server_args.speculative_draft_window_size is None or eagle3 or drafts.algorithm not in _WINDOWED:
        return None
    configured = server_args.decode_attention_backend or server_args.attention_backend
    backend = server_args.speculative_draft_attention_backend or configured
    latent = model_config(server_args.model_path).get("kv_lora_rank")
    if backend == "triton" or (backend == "flashinfer" and not latent):
        return None
    known = "Triton" if latent else "Triton and FlashInfer"
    name = f", and the draft would use {backend}" if backend else ""
    return f"SGLang gives this draft a window only on {known}{name}: try --speculative-draft-attention-backend triton"


def greedy_verify(resolved: Any, exact: bool) -> str | None:
    """Return that this machine verifies drafts greedily at any temperature; None if it does not, or nothing is drafted.

    *resolved* are SGLang's arguments after resolution, *exact* says whether this package verifies sampled requests.
    """
    import torch

    if torch.version.hip is None or exact or resolved.speculative_use_rejection_sampling:
        return None
    if resolved.speculative_algorithm is None or drafts_blocks(resolved):
        return None
    return (
        "SGLang verifies drafts greedily on ROCm, so no temperature applies; sampled are EAGLE's drafts with "
        '--speculative-use-rejection-sampling, and those of an adaptive server with "exact"'
    )


class _Drafts:
    """How a line drafts: its algorithm, and what is known here about the models."""

    def __init__(self, server_args: Any) -> None:
        target, draft = server_args.model_path, server_args.speculative_draft_model_path
        self.algorithm = (server_args.speculative_algorithm or "").upper()
        self.itself = draft is None or Path(draft).resolve() == Path(target).resolve()
        """Whether the target's own checkpoint drafts."""
        self.target = (model_config(target).get("architectures") or [None])[0]
        """The target's architecture; None where it is not on this machine."""
        self.architecture = _as_draft(model_config(target if self.itself else draft), self.algorithm)
        """The architecture of the model that SGLang loads as the draft."""


def _as_draft(found: dict[str, Any], algorithm: str) -> str | None:
    """Return the architecture that SGLang loads as a draft for a configuration: an MTP layer, if it knows one."""
    from sglang.srt.configs.model_config import ModelConfig
    from transformers import PretrainedConfig

    if not found.get("architectures"):
        return None
    asked = ModelConfig.__new__(ModelConfig)
    asked.hf_config = asked.hf_text_config = PretrainedConfig(**found)
    asked.is_draft_model, asked.speculative_algorithm = True, algorithm
    asked.is_draft_quantization_explicit, asked.quantization, asked.sliding_window_size = False, None, None
    try:
        asked._config_draft_model()
    except Exception:  # it reads more of a model than its file
        return None
    return str(asked.hf_config.architectures[0])


def _lacks(architecture: str | None, *words: str) -> bool:
    """Whether an architecture is known, and none of *words* is in its name."""
    return architecture is not None and not any(word in architecture for word in words)


# -- what it could gain -----------------------------------------------------------------------------------------------


def faster_backend(server_args: Any, backend: str | None) -> str | None:
    """Return a faster alternative to *backend*, and why; None if none is known here."""
    import torch

    algorithm = (server_args.speculative_algorithm or "").upper()
    picked = backend in ("flashinfer", "triton")  # by SGLang, before Hopper
    if not picked or algorithm not in ("EAGLE", "EAGLE3", "NEXTN") or not torch.cuda.is_available():
        return None
    # SGLang has fa3 for these GPU generations, and with latent attention (MLA) only for Hopper.
    generations = (9,) if model_config(server_args.model_path).get("kv_lora_rank") else (8, 9)
    if torch.cuda.get_device_capability()[0] not in generations:
        return None
    return "rounds took longer with it than with fa3 (docs/performance.md): try --attention-backend fa3"


# -- whether it can adapt, from its arguments and its models' configurations ------------------------------------------
#
# SGLang resolves a line only on a machine with its device. Some steps of the resolution need none: the flags of data
# parallelism, the worker for the architecture, and the algorithm for the draft. They run here in SGLang's order, and
# then SGLang's own check.


def static_reason(server_args: Any) -> str | None:
    """Return why *server_args*, parsed and not resolved, would not adapt; None where no reason is known.

    Changes *server_args* as SGLang's resolution would: do not launch with it afterwards.
    """
    from sglang.srt.speculative.adaptive_spec_params import adaptive_unsupported_reason

    own = activation.cannot_adapt(server_args)
    if own is not None:
        return own
    settle(server_args)
    try:
        return activation.unsupported_reason(adaptive_unsupported_reason, server_args)
    except OSError:  # the model is not on this machine, so its configuration is checked at launch
        return None


def settle(server_args: Any) -> None:
    """Run the steps of SGLang's resolution on *server_args* that decide how a line speculates."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view
    from sglang.srt.arg_groups.parallel_hook import handle_deprecated_dp_attention

    handle_deprecated_dp_attention(server_args)
    _settle_multi_layer(server_args)
    cfg = resolving_view(server_args)
    algorithm = _algorithm(cfg.speculative_algorithm.upper(), cfg.speculative_draft_model_path)
    declare_resolution(server_args, __name__, speculative_algorithm=algorithm)


def _algorithm(named: str, draft: str | None) -> str:
    """Return SGLang's algorithm for the *named* one; a Gemma 4 draft has its own."""
    from sglang.srt.arg_groups.speculative_hook import _resolve_speculative_algorithm_alias

    if model_config(draft):
        try:
            return str(_resolve_speculative_algorithm_alias(named, draft))
        except Exception:  # a configuration with its own code, which does not run here
            pass
    return str(_resolve_speculative_algorithm_alias(named, None))


def _settle_multi_layer(server_args: Any) -> None:
    """Apply SGLang's override of the target's architecture for drafts of several layers."""
    from sglang.srt.arg_groups.overrides import collect_model_override_declarations, declare_resolution
    from transformers import PretrainedConfig

    target = model_config(server_args.model_path)
    for architecture in target.get("architectures") or ():
        try:
            found = collect_model_override_declarations(architecture, server_args, PretrainedConfig(**target))
        except Exception:  # an override that reads the device or more of the model applies at launch only
            continue
        for source, fields in found:
            if "enable_multi_layer_eagle" in fields:
                many = fields["enable_multi_layer_eagle"]
                declare_resolution(server_args, source, enable_multi_layer_eagle=many)
