"""0004: The configuration file alone turns adaptive on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.patch_checks.parts import LADDER, written
from tests.patch_checks.registry import kept, repaired


@repaired
def the_configuration_alone_turns_adaptive_on() -> None:
    with written(LADDER) as path:
        assert resolved(speculative_adaptive_config=path).speculative_adaptive, "the file was ignored"


@repaired
def hisparse_refuses_the_configuration_alone() -> None:
    from sglang.srt.arg_groups.hisparse_hook import validate_hisparse
    from sglang.srt.arg_groups.overrides import ResolvedView

    with written(LADDER) as path:
        args = dict(enable_hisparse=True, disable_radix_cache=True, speculative_adaptive_config=path)
        view = resolved(**args)
        record = object.__getattribute__(view, "_server_args")
        record._model_config = SimpleNamespace(
            hf_config=SimpleNamespace(architectures=["DeepseekV32ForCausalLM"], index_topk=64, model_type="x")
        )
        try:
            validate_hisparse(ResolvedView(record, overlay={"speculative_adaptive": view.speculative_adaptive}))
        except ValueError as error:
            assert "--speculative-adaptive is not supported" in str(error), error
        else:
            raise AssertionError("the combination was let through")


@kept
def without_the_configuration_adaptive_stays_off() -> None:
    assert not resolved().speculative_adaptive


@kept
def the_flag_alone_turns_adaptive_on() -> None:
    assert resolved(speculative_adaptive=True).speculative_adaptive


def resolved(**given: Any) -> Any:
    """Return the resolved view of a launch with *given* arguments, without a model."""
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.server_args import ServerArgs

    args = ServerArgs(model_path="dummy", device="cpu", speculative_algorithm="EAGLE3", **given)
    args.resolve_once()
    return resolving_view(args)
