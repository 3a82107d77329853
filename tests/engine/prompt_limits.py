"""Which prompts SGLang's tokenizer manager accepts near the end of the context, by number of new tokens.

`run` takes "static" or "adaptive" for the same launch line. For each pair of a prompt's length and new tokens it
returns None if accepted, else the reason; and the tokens that an HTTP worker, which loads no plugins, subtracts from
each request's context.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.serve_cpu import default_arguments
from tests.engine.stepping import EAGLE3

CONTEXT = 512
LENGTHS = range(490, 513)
NEW = (None, *range(20))
"""Requested new tokens; None leaves the number to the server."""


def launched(argv: list[str]) -> tuple[Any, int]:
    """Return a launch line's tokenizer manager in the launching process, and what a worker subtracts."""
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.managers import multi_tokenizer_mixin, utils
    from sglang.srt.managers.tokenizer_manager import TokenizerManager
    from sglang.srt.runtime_context import publish
    from sglang.srt.server_args import PortArgs, prepare_server_args

    server_args = prepare_server_args(argv)
    server_args.resolve_once()
    publish(server_args, role="tokenizer")
    ports = PortArgs.init_new(server_args)
    shared = multi_tokenizer_mixin.write_data_for_multi_tokenizer(ports, server_args, {})
    of_worker = multi_tokenizer_mixin.read_from_shared_memory(shared.name)[1]
    shared.unlink()
    publish(of_worker, role="tokenizer")
    taken_off = inspect.unwrap(utils.compute_num_reserved_tokens)()
    publish(server_args, role="tokenizer")
    return TokenizerManager(server_args, ports), taken_off


def run(folder: Path, kind: str) -> dict[str, Any]:
    from sglang.srt.managers.io_struct import GenerateReqInput

    argv = [
        *("--model-path", str(models.target_path()), "--context-length", str(CONTEXT)),
        *(*EAGLE3, "--speculative-num-steps", "3", "--speculative-num-draft-tokens", "4"),
    ]
    if kind == "adaptive":
        config = folder / "adaptive.json"
        config.write_text(json.dumps({"throughput": {"candidate_steps": [0, 1, 3, 7]}}))
        argv += ["--speculative-adaptive-config", str(config)]
    manager, taken_off = launched([*argv, *default_arguments(argv)])

    def refusal(length: int, new: int | None) -> str | None:
        ids = [1] * length
        try:
            manager._validate_one_request(GenerateReqInput(input_ids=ids, sampling_params={"max_new_tokens": new}), ids)
        except ValueError as error:
            return str(error)
        return None

    asked = [[length, new, refusal(length, new)] for length in LENGTHS for new in NEW]
    return {"asked": asked, "workers_take_off": taken_off}
