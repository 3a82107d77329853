"""`python -m train.smollm2 --out FOLDER`: train SmolLM2's draft, all stages or one; run it again to continue."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from sglang_adaptive.lab.models.folders import PACKED, ModelError
from sglang_adaptive.lab.models.smollm2 import target_folder
from train.smollm2.answers import answer
from train.smollm2.clock import Clock
from train.smollm2.held_out import HeldOut
from train.smollm2.loop import Training
from train.smollm2.measure import measure
from train.smollm2.plan import STAGES, Plan
from train.smollm2.questions import Questions, folders
from train.smollm2.rounding import pack_draft
from train.smollm2.speaker import Speaker
from train.smollm2.store import Documents, Shards, read
from train.smollm2.together import Together

ROOT = Path(__file__).resolve().parents[2]
SPEC_BENCH = ROOT / "benchmarks" / "traces" / "spec_bench" / "question.jsonl.gz"
SHIPPED = ROOT / "train" / "smollm2" / "draft3"
SIZES = (
    *("asked", "contexts", "translations", "passages", "wave", "answer_tokens", "write_tokens", "vocabulary"),
    *("train_tokens", "rate", "measured", "positions", "record_tokens", "seed"),
)
"""The parts of a plan that the command line may change."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the unfinished stages. Returns 0; 3 if the call stopped before the last one was done."""
    parser = _parser()
    options = parser.parse_args(argv)
    given = {size: getattr(options, size) for size in SIZES if getattr(options, size) is not None}
    plan = dataclasses.replace(Plan(), **given)
    options.out.mkdir(parents=True, exist_ok=True)
    leave_at = float("inf") if options.leave_after is None else time.monotonic() + 60 * options.leave_after
    code = 0
    try:
        run(options, plan, leave_at)
    except Unfinished as left:
        print(f"{left}: not done yet; run the same command to continue", flush=True)
        code = 3
    except (OSError, ValueError, ModelError) as error:
        parser.exit(2, f"{parser.prog}: {error}\n")
    Together.of_environment().leave()
    return code


class Unfinished(Exception):
    """The call has to stop; the message is the stage."""


def run(options: argparse.Namespace, plan: Plan, leave_at: float, now: Callable[[], float] = time.monotonic) -> None:
    """Run the stages of *options*. Raises Unfinished at *leave_at*; ValueError or OSError for a problem."""
    minutes = _minutes(options)
    together = Together.of_environment()
    device = torch.device(options.device, together.rank) if options.device == "cuda" else torch.device(options.device)
    held_out = HeldOut.of(options.prompts)
    speaker: Speaker | None = None
    for stage in [options.stage] if options.stage else STAGES:
        if stage == "measure":
            draft = options.draft or options.out / "packed"
            measure(options.target, draft, options.prompts, options.out, plan, options.device, options.name)
            continue
        clock = Clock(options.out / "progress.json", stage, minutes[stage], leave_at, now)
        if clock.leaving():
            raise Unfinished(stage)
        speaker = speaker or Speaker(options.target, device, plan.seed, plan.write_tokens)
        if not STAGE[stage](options, plan, speaker, held_out, clock):
            raise Unfinished(stage)
        print(f"{stage}: done, {clock.used():.0f} s", flush=True)
        torch.cuda.empty_cache()  # the next stage may need one large block instead of many small ones


def write_questions(options: argparse.Namespace, plan: Plan, speaker: Speaker, held_out: HeldOut, clock: Clock) -> bool:
    questions = Questions(speaker, held_out, options.out, plan)
    done = questions.write(clock)
    if done:
        print(f"questions: {questions.check()}, none of them held out", flush=True)
    return done


def write_answers(options: argparse.Namespace, plan: Plan, speaker: Speaker, held_out: HeldOut, clock: Clock) -> bool:
    questions = read(folders(options.out))
    if not len(questions):
        raise ValueError(f"{options.out}: has no questions; run --stage questions first")
    return answer(speaker, questions, Shards(options.out / "answers"), plan, clock)


def train(options: argparse.Namespace, plan: Plan, speaker: Speaker, held_out: HeldOut, clock: Clock) -> bool:
    start = None if options.start == "target" else Path(options.start)
    together = Together.of_environment()
    return Training(options.out, speaker.target, options.target, _answers(options), plan, start, together).run(clock)


def pack(options: argparse.Namespace, plan: Plan, speaker: Speaker, held_out: HeldOut, clock: Clock) -> bool:
    packed = options.out / "packed"
    size = pack_draft(options.draft or options.out / "draft", speaker.target, _answers(options), packed)
    print(f"pack: {packed / PACKED}, {size / 1e6:.2f} MB", flush=True)
    return True


STAGE = {"questions": write_questions, "answers": write_answers, "train": train, "pack": pack}


def _answers(options: argparse.Namespace) -> Documents:
    documents = read([Shards(folder / "answers") for folder in (options.out, *options.also)])
    if not len(documents):
        raise ValueError(f"{options.out}: has no answers; run --stage answers first")
    return documents


def _minutes(options: argparse.Namespace) -> dict[str, float]:
    """Return each stage's minutes: --minutes apply to the one given stage, or are divided among all."""
    if options.minutes is None:
        return STAGES
    if options.stage:
        return {options.stage: options.minutes}
    return {stage: minutes * options.minutes / sum(STAGES.values()) for stage, minutes in STAGES.items()}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m train.smollm2", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for all output, including draft/")
    parser.add_argument("--stage", choices=list(STAGES), help="run only this stage (default: all, in this order)")
    defaults = ", ".join(f"{stage} {minutes:g}" for stage, minutes in STAGES.items())
    parser.add_argument("--minutes", type=float, help=f"limit of the stage, or of all together (default {defaults})")
    parser.add_argument("--leave-after", type=float, help="minutes until this run saves and exits, finished or not")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--target", type=Path, default=target_folder(), help="Transformers folder of the target (default: in the cache)"
    )
    parser.add_argument("--start", default=str(SHIPPED), help="draft to start from, or `target` (default: shipped)")
    parser.add_argument("--also", type=Path, nargs="*", default=[], help="other --out folders with answers to train on")
    parser.add_argument("--prompts", type=Path, default=SPEC_BENCH, help="held-out questions (default: Spec-Bench's)")
    parser.add_argument("--draft", type=Path, help="draft to pack or measure (default: the one in --out)")
    parser.add_argument("--name", default="accept", help="name of the files that `measure` writes (default accept)")
    types = {field.name: field for field in dataclasses.fields(Plan)}
    for size in SIZES:
        default = types[size].default
        kind = float if isinstance(default, float) else int
        parser.add_argument(f"--{size.replace('_', '-')}", type=kind, help=f"see plan.py (default {default})")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
