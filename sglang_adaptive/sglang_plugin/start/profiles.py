"""A server's cost profile: its key; the first rank loads it at start-up, shares it, and saves it while serving."""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from sglang_adaptive.policy.base import AdaptivePolicy
from sglang_adaptive.policy.profile import CostProfile, ProfileKey
from sglang_adaptive.provenance import cpu_model, versions
from sglang_adaptive.runtime.profile_store import ProfileSaver, ProfileStore, default_folder
from sglang_adaptive.sglang_plugin import env

logger = logging.getLogger(__name__)

_PACKAGES = ("sglang", "sglang-adaptive", "torch", "triton", "sglang-kernel", "flashinfer-python")
"""Packages that run inside a round; a new version may change its time."""


@cache
def profile_key() -> ProfileKey:
    """Return the profile key of this scheduler's server."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.runtime_context import get_context

    cfg = resolving_view(get_context().server_args)
    return ProfileKey(
        target_model=_model(cfg.model_path),
        draft_model=_draft(cfg),
        gpu_name=_device_name(str(cfg.device)),
        gpu_count=cfg.tp_size * cfg.pp_size,
        tp_size=cfg.tp_size,
        attention_backend=_attention(cfg),
        dtypes={"model": str(cfg.dtype), "kv_cache": str(cfg.kv_cache_dtype), "quantization": str(cfg.quantization)},
        versions={name: found for name, found in versions(*_PACKAGES).items() if found and name in _PACKAGES},
    )


def _draft(cfg: Any) -> str:
    """Name the draft: a model, the target's own layers, or NGRAM; with multi-layer EAGLE also how many layers draft."""
    from sglang.srt.runtime_context import get_spec

    if cfg.speculative_algorithm == "NGRAM":
        return "NGRAM"
    name, spec = _model(cfg.speculative_draft_model_path or cfg.model_path), get_spec()
    return f"{name}, {spec.speculative_num_steps} layers" if spec.enable_multi_layer_eagle else name


def _attention(cfg: Any) -> str:
    """Name the attention backend, and with attention DP also its number of ranks and the experts' backend."""
    ranks, name = cfg.attn_dp_size, str(cfg.attention_backend)
    return name if ranks == 1 else f"{name}, attention DP {ranks}, experts over {cfg.moe_a2a_backend}"


def _model(path: str) -> str:
    """Name a model without its folder; add a digest of its config to a local one, because names repeat."""
    folder = Path(path)
    if not folder.is_dir():
        return path
    config = folder / "config.json"
    digest = hashlib.sha256(config.read_bytes()).hexdigest()[:8] if config.is_file() else "no-config"
    return f"{folder.resolve().name}@{digest}"


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        return str(torch.cuda.get_device_name())
    return f"{device}: {cpu_model()}" if device.startswith("cpu") else device


MEASURED = "learned while serving by the throughput policy"


def folder(profile_dir: str | None) -> Path:
    """Return the profile folder: the configured one, the environment's, or the user's cache."""
    chosen = profile_dir or os.environ.get(env.PROFILE_DIR)
    return Path(chosen).expanduser() if chosen else default_folder()


def load_shared(profile_dir: str | None) -> CostProfile | None:
    """Return the first rank's saved profile of this server, on every rank; all ranks call it together."""
    return _of_first_rank(lambda: _load(profile_dir))


def share_known(policy: AdaptivePolicy) -> CostProfile | None:
    """Return the first rank's round times, on every rank; all ranks call it together."""

    def known() -> CostProfile | None:
        try:
            return policy.known_profile(profile_key(), MEASURED)
        except Exception:  # the other ranks wait for the broadcast
            logger.warning("adaptive: the measured round times could not be shared", exc_info=True)
            return None

    return _of_first_rank(known)


def _of_first_rank(profile: Callable[[], CostProfile | None]) -> CostProfile | None:
    from sglang.srt.runtime_context import get_parallel

    group = get_parallel().tp_group
    found = profile() if group.rank_in_group == 0 else None
    shared: CostProfile | None = group.broadcast_object(found, src=0)
    return shared


class CostSharing:
    """The controller's ``share_cost`` for one policy: a broadcast, and on the first rank a save when one is due.

    With attention DP there is no broadcast: ranks have results in different rounds, and the ballots carry the prices.
    """

    def __init__(self, policy: AdaptivePolicy) -> None:
        from sglang.srt.runtime_context import get_parallel

        self._group = get_parallel().tp_group
        self._alone = get_parallel().attn_dp_size > 1
        self._policy: AdaptivePolicy | None = None
        if policy.keeps_profile and self._group.rank_in_group == 0:
            self._policy = policy
            self._saver = ProfileSaver(_store(policy.options.profile_dir))
            atexit.register(self._close, policy)

    def __call__(self, payload: Any) -> Any:
        """Return the first rank's *payload*, on every rank; with attention DP this rank's own."""
        policy = self._policy
        if policy is not None:
            try:
                self._saver.offer(lambda: _learnt(policy))
            except Exception:  # the other ranks wait for the broadcast
                logger.warning("adaptive: measured round times could not be kept", exc_info=True)
        return payload if self._alone else self._group.broadcast_object(payload)

    def saved_at(self) -> float | None:
        """Return the Unix time in seconds at which this server's profile was last written to disk.

        None on ranks other than the first, which neither load nor save one.
        """
        return None if self._policy is None else _store(self._policy.options.profile_dir).saved_at

    def retire(self) -> None:
        """Save the profile of a replaced policy, in another thread."""
        if self._policy is None:
            return
        atexit.unregister(self._close)  # it would overwrite newer times
        policy, self._policy = self._policy, None
        threading.Thread(target=self._close, args=(policy,), name="profile-saver", daemon=True).start()

    def _close(self, policy: AdaptivePolicy) -> None:
        """Save the profile of *policy* once more: it is replaced, or the scheduler process ends."""
        try:
            if (learnt := _learnt(policy)).cells:
                self._saver.close(learnt)
        except Exception:
            logger.warning("adaptive: measured round times could not be kept", exc_info=True)


@cache
def _store(profile_dir: str | None) -> ProfileStore:
    """Return the one store of this process; it loads and saves the same file."""
    return ProfileStore(profile_key(), folder(profile_dir))


def _load(profile_dir: str | None) -> CostProfile | None:
    """Load on this rank; after an error, log a warning and return None."""
    try:
        store = _store(profile_dir)
        found = store.load()
    except Exception:
        logger.warning("adaptive: no cost profile could be looked up", exc_info=True)
        return None
    if found is not None:
        logger.info("adaptive: starting from the cost profile %s (%d cells)", store.path, len(found.cells))
    return found


def _learnt(policy: AdaptivePolicy) -> CostProfile:
    day = datetime.now(UTC).date().isoformat()
    return policy.export_profile(profile_key(), f"{MEASURED}, until {day}")
