"""SGLang's real scheduler, worker and model pair in this process, stepped round by round.

Over HTTP, a depth change reaches a request at a nondeterministic round. Here a script runs before every turn of
SGLang's own event loop, so two runs of a script see the same rounds.

``python -m tests.engine.stepping MODULE FOLDER ARGUMENTS`` prints what the function `run` of a module next to this one
returns.
"""

from __future__ import annotations

import array
import gc
import itertools
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from sglang_adaptive.lab.cpu_engine import models
from sglang_adaptive.policy.observation import RoundNote
from sglang_adaptive.serve_cpu import default_arguments
from sglang_adaptive.sglang_plugin import hooks
from sglang_adaptive.sglang_plugin.stage import current
from sglang_adaptive.sglang_plugin.stages.zero_steps.deferred_draft_extend import DeferredDraftExtend
from sglang_adaptive.sglang_plugin.stages.zero_steps.inputs import KnownLengths

TIERS = [0, 1, 3, 7]
SLOTS = 8192
EAGLE3 = (
    *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", models.draft_path()),
    *("--speculative-eagle-topk", "1"),
)
Script = Callable[["Stepper"], Iterator[None]]
Asked = tuple[int, list[int], int, Mapping[str, Any]]
"""The turn at which a request arrives, its prompt, its new tokens, and what else `Stepped.ask` gets."""


class Stepped:
    """One scheduler for any number of runs, with SLOTS slots of one token each."""

    SKIPS_ROUNDS = False
    """Whether it skips rounds whose requests already have all their tokens, as SGLang does."""

    def __init__(self, folder: Path, config: Mapping[str, Any] | None, *more: str) -> None:
        """*config* is the adaptive configuration, if any; flags in *more* override those set here."""
        _make_cpu_fit()
        argv = ["--model-path", models.target_path(), "--max-total-tokens", str(SLOTS), "--chunked-prefill-size", "64"]
        argv += ["--max-running-requests", "8", *more]
        if config is not None:
            path = folder / "stepping.json"
            path.write_text(json.dumps(config))
            argv += ["--speculative-adaptive-config", str(path)]
        self.scheduler = _scheduler([*argv, *default_arguments(argv)])
        self.scheduler._war_barrier_enabled = False  # the loop sets it at the start; a CPU has one stream
        if not self.SKIPS_ROUNDS:
            self.scheduler.enable_skip_finishing_decode = False
        self.worker = self.scheduler.draft_worker
        adapts = getattr(self.worker, "adaptive_controller", None)
        self.controller = None if adapts is None else adapts.controller
        self.reqs: dict[str, Any] = {}
        self.drafts: list[tuple[int, int, list[int]]] = []
        """(first token of the prompt, position, proposed tokens) of every request in rounds that draft, if logged."""

    def play(self, turn: Callable[[], bool], overlap: bool) -> None:
        """Run SGLang's loop from an empty cache; *turn* is called before each turn and returns whether it is the last.

        *overlap* selects SGLang's overlapping loop, which processes results one round late.
        """
        scheduler = self.scheduler
        scheduler.enable_overlap = overlap
        if hasattr(self.worker, "enable_overlap"):
            self.worker.enable_overlap = overlap
        assert scheduler.flush_cache()
        self.reqs.clear()

        def ingest(**_: Any) -> list[Any]:
            scheduler.gracefully_exit = turn()
            return []

        scheduler.ingest_requests = ingest
        scheduler.gracefully_exit = False
        (scheduler.event_loop_overlap if overlap else scheduler.event_loop_normal)()
        scheduler.last_batch = None

    def play_depths(self, depths: Sequence[int | None], overlap: bool, turn: Callable[[int], bool]) -> None:
        """Like `play`, with each of *depths* in turn, one turn each; *turn* gets its number, from 0."""
        steps, number = itertools.cycle(depths), itertools.count()

        def step() -> bool:
            if depths:
                self.force(next(steps))
            return turn(next(number))

        self.play(step, overlap)

    def serve(
        self,
        asked: Mapping[str, Asked],
        depths: Sequence[int] = (),
        overlap: bool = False,
        aborted: tuple[str, int] | None = None,
    ) -> dict[str, Any]:
        """Run requests, with each of *depths* in turn, one turn each; return what they and the controller tell.

        *aborted* is the request that is aborted, which is left out, and the turn of that.
        """
        self.drafts.clear()
        before = {} if self.controller is None else self.controller.snapshot()

        def step(now: int) -> bool:
            for rid, (turn, ids, tokens, more) in asked.items():
                if turn == now:
                    self.ask(rid, ids, tokens, **more)
            if now == abort_at:
                self.abort(gone)
            return now > last and self.over()

        gone, abort_at = aborted or ("", -1)
        last = max(abort_at, *(turn for turn, *_ in asked.values()))
        self.play_depths(depths, overlap, step)
        found = {
            "outputs": {rid: ids for rid, ids in self.outputs().items() if rid != gone},
            "verified": {rid: req.spec_verify_ct for rid, req in self.reqs.items()},
            "retracted": self.retractions(),
            "free_slots": self.free_slots(),
        }
        if self.controller is not None:
            after = self.controller.snapshot()
            ran, accepted = (
                {int(steps): n - before[what].get(steps, 0) for steps, n in after[what].items()}
                for what in ("rounds_by_tier", "accepted_by_tier")
            )
            found |= {"ran": [steps for steps, n in ran.items() if n], "accepted": sum(accepted.values())}
            found |= {"drafts": list(self.drafts), "degraded": after["degraded_reason"]}
        return found

    def over(self) -> bool:
        """Whether all that `serve` runs has ended."""
        return self.done()

    def outputs(self) -> dict[str, list[int]]:
        """Return the tokens of each request; a last round may accept more than requested, which are not sent."""
        return {rid: list(req.output_ids_through_stop) for rid, req in self.reqs.items()}

    def retractions(self) -> int:
        return sum(req.retraction_count for req in self.reqs.values())

    def free_slots(self) -> int:
        """Return how many slots no request holds."""
        free, cached = self.scheduler.token_to_kv_pool_allocator, self.scheduler.tree_cache
        return int(free.available_size() + cached.evictable_size())

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.scheduler.tokenizer.encode(text, add_special_tokens=False)
        return ids

    def ask(
        self,
        rid: str,
        ids: list[int],
        max_new_tokens: int,
        *,
        hidden_states: bool = False,
        processor: str | None = None,
        **sampling: Any,
    ) -> None:
        """Send a greedy request, which a stop token ends only with ignore_eos=False; it enters at the next turn."""
        from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
        from sglang.srt.sampling.sampling_params import SamplingParams

        sampling = {"temperature": 0, "ignore_eos": True, **sampling}
        parameters = SamplingParams(max_new_tokens=max_new_tokens, **sampling)
        parameters.normalize(self.scheduler.tokenizer)
        self.scheduler.handle_generate_request(
            TokenizedGenerateReqInput(
                rid=rid, input_text=None, input_ids=array.array("q", ids), input_embeds=None, mm_inputs=None,
                token_type_ids=None, sampling_params=parameters, return_logprob=False, logprob_start_len=-1,
                top_logprobs_num=0, token_ids_logprob=None, stream=False, return_hidden_states=hidden_states,
                custom_logit_processor=processor,
            )
        )  # fmt: skip
        # Grammars must be compiled by now: another thread's speed is not scripted.
        waiting = (*self.scheduler.waiting_queue, *self.scheduler.grammar_manager.grammar_queue)
        req = self.reqs[rid] = next(req for req in waiting if req.rid == rid)
        if isinstance(req.grammar, Future):
            wait([req.grammar])

    def abort(self, rid: str) -> None:
        from sglang.srt.managers.io_struct import AbortReq

        self.scheduler.abort_request(AbortReq(rid=rid))

    def force(self, steps: int | None) -> None:
        self.controller.force_steps(steps)

    def verified(self, rid: str) -> int:
        """Return the number of the request's tokens so far."""
        return len(self.reqs[rid].output_ids)

    def done(self, *rids: str) -> bool:
        """Whether these requests, or all, have ended; one that runs out of slots ends without a reason."""
        reqs = [self.reqs[rid] for rid in rids or self.reqs]
        return all((req.finished() or req.to_finish) and not req.kv.holds_kv for req in reqs)

    def rest(self, *rids: str) -> Iterator[None]:
        """Go on until these requests, or all, are done."""
        while not self.done(*rids):
            yield

    def hear(self, told: Callable[[list[int], int, RoundNote], None]) -> None:
        """Call *told* with what the controller learns of each round."""
        learn = self.controller.verified

        def heard(counts: list[int], batch_size: int, note: RoundNote) -> None:
            told(counts, batch_size, note)
            learn(counts, batch_size, note)

        self.controller.verified = heard

    def _log_drafts(self) -> None:
        draft_worker = self.worker._draft_worker
        draft = draft_worker.draft

        def logged(batch: Any, **kwargs: Any) -> Any:
            positions = batch.seq_lens.tolist()
            verify_input = draft(batch, **kwargs)
            tokens = verify_input.draft_token.view(len(positions), -1).tolist()
            for req, position, row in zip(batch.reqs, positions, tokens, strict=True):
                self.drafts.append((req.origin_input_ids[0], position, row))
            return verify_input

        draft_worker.draft = logged


class Stepper(Stepped):
    """The shipped pair, or another draft, with rows held after zero-step rounds."""

    CONFIG: Mapping[str, Any] = {"1": {"candidate_steps": TIERS}}

    def __init__(self, folder: Path, algorithm: str = "EAGLE3", draft: str | None = None, *more: str) -> None:
        drafting = ("--speculative-algorithm", algorithm, "--speculative-eagle-topk", "1")
        model = ("--speculative-draft-model-path", draft or models.draft_path())
        super().__init__(folder, self.CONFIG, *drafting, *model, *more)
        self._well_drafted = algorithm == "EAGLE3"
        now = current()
        assert now is not None
        self.round, (self.deferred,) = now, now.of(DeferredDraftExtend)
        self.chosen: list[tuple[int, int, int]] = []
        """The same for the draft's choice after every extend of a zero-step round: one token."""
        self.shadow_drafts: list[tuple[Any, int, int]] = []
        """(request, position, token) of every shadow draft that a zero-step round checked."""
        self.shadow_accepts: list[int] = []
        """The same as reported to the policy: 1 for correct, 0 for wrong."""
        self.cycles = 0
        """Zero-step rounds reported to the policy as the end of a cycle."""
        self.lengths = {"known": 0, "waited for": 0, "wrong": 0}
        """Decode rounds by how the host got the lengths of their requests; and rounds with wrong lengths."""
        self._log_lengths()
        self._log_drafts()
        self._log_choices()
        self._log_shadow_drafts()

    def run(self, script: Script, *, every: int, overlap: bool = True) -> dict[str, Any]:
        """Run *script* from an empty cache; it resumes before every turn, and its end ends the run."""
        self.deferred.set_every(every)
        self.controller.force_steps(None)
        forget_keys_and_values(self.worker._draft_worker.draft_runner)
        for log in (self.drafts, self.chosen, self.shadow_drafts, self.shadow_accepts):
            log.clear()
        self.cycles = 0
        self.deferred._kv_only_since_output = 0
        self.lengths = dict.fromkeys(self.lengths, 0)
        before = dict(self.deferred.snapshot())
        steps = script(self)
        self.play(lambda: next(steps, "end") == "end", overlap)
        after = self.deferred.snapshot()
        return {
            "outputs": self.outputs(),
            "cached": {rid: req.cached_tokens for rid, req in self.reqs.items()},
            "rounds": {rid: req.spec_verify_ct for rid, req in self.reqs.items()},
            "drafts": sorted(self.drafts),
            "chosen": list(self.chosen),
            "shadow_drafts": [(*_next_token(req, position), token) for req, position, token in self.shadow_drafts],
            "shadow_accepts": list(self.shadow_accepts),
            "cycles": self.cycles,
            "lengths": self.lengths,
            "held_rounds": after["held_rounds"] - before["held_rounds"],
            "extends": after["extends"] - before["extends"],
            "writes": after["writes"] - before["writes"],
            "reason": after["reason"],
            "free_slots": self.free_slots(),
        }

    def tokens_of(self, rounds: int, steps: int) -> int:
        """Return about how many tokens *rounds* write: most drafts of EAGLE-3 are correct, few of other drafts."""
        return rounds * (1 + steps if self._well_drafted else 2)

    def _log_lengths(self) -> None:
        """Compare lengths on the host and on the device; the host does not wait for those of a zero-step round."""
        future_map, (lengths,) = self.scheduler.future_map, self.round.of(KnownLengths)
        known = lengths._known
        resolve = future_map.resolve_seq_lens_cpu

        def logged(batch: Any, **kwargs: Any) -> None:
            resolve(batch, **kwargs)
            if batch.forward_mode.is_decode():
                self.lengths["wrong"] += batch.seq_lens_cpu.tolist() != batch.seq_lens.tolist()

        def asked(batch: Any) -> Any:
            found = known(batch)
            if batch.forward_mode.is_decode():
                self.lengths["waited for" if found is None else "known"] += 1
            return found

        future_map.resolve_seq_lens_cpu, lengths._known = logged, asked

    def _log_choices(self) -> None:
        draft_worker = self.worker._draft_worker
        extend = draft_worker._draft_extend_for_decode

        def logged(batch: Any, result: Any, **kwargs: Any) -> None:
            positions = batch.seq_lens.tolist()
            extend(batch, result, **kwargs)
            chosen = result.next_draft_input.topk_index
            if self.worker.speculative_num_steps == 0 and chosen is not None:  # None where a test omits it
                for req, position, token in zip(batch.reqs, positions, chosen[:, 0].tolist(), strict=True):
                    self.chosen.append((req.origin_input_ids[0], position + 1, token))

        draft_worker._draft_extend_for_decode = logged

    def _log_shadow_drafts(self) -> None:
        after_verify = self.deferred.after_verify

        def logged(extend: Callable[..., None], batch: Any, result: Any) -> bool:
            shadow = self.deferred._shadow_drafts
            rows = zip(batch.reqs, self.deferred._keys(batch), batch.seq_lens.tolist(), strict=True)
            for req, key, position in rows if shadow else ():
                if key in shadow.places:
                    self.shadow_drafts.append((req, position, int(shadow.tokens[shadow.places[key]])))
            return after_verify(extend, batch, result)

        def told(counts: list[int], batch_size: int, note: RoundNote) -> None:
            self.shadow_accepts.extend(note.shadow_accepts)
            self.cycles += note.extended and not note.steps

        self.deferred.after_verify = logged
        self.hear(told)


def turns(count: int) -> Iterator[None]:
    return itertools.repeat(None, count)


def forget_keys_and_values(runner: Any) -> None:
    """Overwrite a draft's keys and values, so that a run cannot read what an earlier run wrote."""
    for buffer in (*runner.token_to_kv_pool.k_buffer, *runner.token_to_kv_pool.v_buffer):
        buffer.normal_(std=30, generator=torch.Generator().manual_seed(0))


@contextmanager
def no_memory() -> Iterator[None]:
    """Let SGLang find no memory in its next check: it retracts a request, unless it is the only one."""
    from sglang.srt.managers.schedule_batch import ScheduleBatch

    enough, answers = ScheduleBatch.check_decode_mem, iter([False])
    with mock.patch.object(ScheduleBatch, "check_decode_mem", lambda *args, **kw: next(answers, enough(*args, **kw))):
        yield


def _next_token(req: Any, position: int) -> tuple[int, int, int | None]:
    """Return the prompt's first token, *position*, and the next token of the text."""
    text = [*req.origin_input_ids, *req.output_ids]
    return text[0], position, text[position + 1] if position + 1 < len(text) else None


def _scheduler(argv: list[str]) -> Any:
    from sglang.srt.plugins import load_plugins

    load_plugins()
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import SpawnRanks, publish
    from sglang.srt.server_args import PortArgs, prepare_server_args

    server_args = prepare_server_args(argv)
    server_args.resolve_once()
    hooks.install_now(hooks.of_scheduler())
    publish(server_args, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    scheduler = Scheduler(server_args, PortArgs.init_new(server_args))
    scheduler.idle_sleeper = None  # it would wait up to a second per turn for a message
    gc.freeze()  # SGLang collects at every flush: half a second for the imports' objects, as long as a run
    return scheduler


def _make_cpu_fit() -> None:
    """Add a CPU form of a kernel of SGLang's relay; without one, SGLang turns overlap off for speculation on a CPU."""
    from sglang.srt.arg_groups import speculative_hook
    from sglang.srt.managers import overlap_utils

    speculative_hook._disable_overlap_schedule_for_cpu = lambda server_args: None

    def gather(indices: Any, topk_p: Any, topk_index: Any, tokens: Any, hidden: Any) -> Any:
        return topk_p[indices], topk_index[indices], tokens[indices], None if hidden is None else hidden[indices]

    overlap_utils.gather_spec_extras = gather


def main() -> None:
    module, folder, *arguments = sys.argv[1:]
    print(json.dumps(import_module(f"tests.engine.{module}").run(Path(folder), *arguments)))


if __name__ == "__main__":
    main()
