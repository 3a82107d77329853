"""The launcher's part of the warm-up: send requests before SGLang's own, while the server is not ready.

Kernels load and compile at their first launch, and many are specialized by the number of draft tokens or the batch
size. Without a warm-up, a client's first rounds at each number of steps would be slow. The requests go through the
scheduler, where the controller runs all steps in turn (``runtime/states.py``).
"""

from __future__ import annotations

import asyncio
import fcntl
import inspect
import logging
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from subprocess import Popen, TimeoutExpired
from typing import Any

import requests

from sglang_adaptive.runtime.states import Progress
from sglang_adaptive.sglang_plugin.admin.handlers import BEGIN, END, WARM_UP_KEY
from sglang_adaptive.sglang_plugin.admin.route import to_schedulers
from sglang_adaptive.sglang_plugin.admin.server_info import manager
from sglang_adaptive.sglang_plugin.configuration import reading_of
from sglang_adaptive.sglang_plugin.launch import compile_ahead
from sglang_adaptive.sglang_plugin.launch.activation import adapts, runs_on_cpu

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
REQUEST_SECONDS = 600.0
TOLD_SECONDS = 10.0
"""Time limit for a message to the schedulers: an event loop that ends waits for this thread."""
MOST_WITHOUT_GRAPHS = 16
"""Largest batch of the warm-up where CUDA graphs are off."""
ATTEMPTS = 3
LONG = 200
"""Tokens of a batch's one long prompt, plus one per request."""
VOCABULARY = 256
"""Prompts consist of token ids below this; every vocabulary has that many."""
GREEDY: Mapping[str, Any] = {"sampling_params": {"temperature": 0.0}}
PENALIZED: Mapping[str, Any] = {
    "sampling_params": {"temperature": 0.0, "frequency_penalty": 0.1, "presence_penalty": 0.1}
}
"""Without a minimum length, which a server without a tokenizer refuses; the kernels are the same."""
SAMPLED: Mapping[str, Any] = {"sampling_params": {"temperature": 1.0, "top_p": 0.9, "top_k": 20}}
UNFILTERED: Mapping[str, Any] = {"sampling_params": {"temperature": 1.0}}
"""Without top-k and top-p SGLang draws with other kernels; seeded, it compiles a function for each kind."""
LOGPROBS: Mapping[str, Any] = {**GREEDY, "return_logprob": True, "logprob_start_len": 0}
"""SGLang prepares rounds with these requests (``fast_path``), with kernels that other rounds do not need. A prompt's
log-probabilities have a kernel of their own."""
GRAMMAR: Mapping[str, Any] = {"sampling_params": {"temperature": 0.0, "regex": "[0-9]{300}"}}
"""Long enough that no text ends in the warm-up; compiled in a millisecond."""
FEW_SIZES = (1, 3)
"""For passes whose kernels depend only on whether the batch size is 1."""
SAMPLED_SIZES = (1, 3, 16)
"""For kernels that Triton specializes by whether the number of rows is 1, a multiple of 16 or neither."""
GRAMMAR_SIZES = (1, 4, 16)
"""For the kernel that masks logits, which Triton specializes by whether the rows, steps + 1 per request, are 1, a
multiple of 16 or neither."""
PREFILL_SIZES = (1, 3, 16)
PREFILL_TOKENS = (32, 33)
"""Lengths of the last prompt; the others have the first length. Triton specializes by whether the numbers of prompts
and of their tokens are 1, a multiple of 16 or neither."""
SHORT = (3, 8, 9, 16)
"""Lengths of single prompts. With few tokens SGLang's kernel of experts has smaller blocks. Triton specializes it by
whether tokens times experts per token, and that number padded to whole blocks, are multiples of 16."""
PREFIX = 1024
"""Most cached tokens before these. Latent attention has one prefill without cached tokens, one with some, and one from
8,192 in the batch on, which 16 prompts have."""


class ServerEnds(Exception):
    """The server was told to end, and waits for the requests that run."""


def wait_and_warm_up(original: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Run the warm-up before the request in *original*, SGLang's _wait_and_warmup, that makes the server ready.

    With ``--skip-server-warmup`` SGLang runs neither. A server that ends during the warm-up waits for this function,
    and SGLang's request would wait two minutes for the server.
    """
    call = inspect.signature(original).bind(*args, **kwargs)
    call.apply_defaults()
    execute = call.arguments["execute_warmup_func"]

    def both(server_args: Any) -> Any:
        return _warm_up(server_args) and execute(server_args)

    call.arguments["execute_warmup_func"] = both
    original(*call.args, **call.kwargs)


def batch_sizes(largest: int) -> list[int]:
    """Return 1, 2, 3, 4, 7, 8, 13, 16, 25, 32, ... up to *largest*, which is the last.

    Triton specializes by the next power of two, if a kernel has it as a constant, and by whether a number is 1 or a
    multiple of 16. So from 16 on there are two sizes for each power of two, one of them a multiple of 16.
    """
    sizes, power = {1, largest}, 2
    while power <= largest:
        sizes |= {power, 3 * power // 4 + (power > 4)}
        power *= 2
    return sorted(sizes)


def few_sizes(sizes: Iterable[int], tiers: Iterable[Mapping[str, Any]]) -> list[int]:
    """Return *sizes*, and for each of *tiers*, entries of ``startup``, the smallest at which it may run: it has graphs.

    A tier may have none at the small sizes, as in a configuration with other steps from a batch size on.
    """
    return sorted({*sizes, *(min(tier["graph_batch_sizes"]) for tier in tiers if tier["graph_batch_sizes"])})


def _warm_up(server_args: Any) -> bool:
    """Warm up if the configuration and the setup want it; after an error, log a warning and go on.

    Returns False if the server ends.
    """
    server = None
    try:
        if _wanted(server_args):
            server = _Server(server_args)
            with _one_at_a_time(server_args):
                if not server.has_warmed_up():
                    server.warm_up()
        return not _was_told_to_end()
    except Exception:
        if server is not None and server.is_ending():
            logger.info("adaptive: the warm-up stops, because the server ends")
            return False
        logger.warning("adaptive: the warm-up failed; the first rounds of a depth will be slower", exc_info=True)
        return True


def _wanted(server_args: Any) -> bool:
    from sglang.srt.arg_groups.overrides import resolving_view

    cfg = resolving_view(server_args)
    if not adapts(server_args) or not cfg.speculative_adaptive:
        return False
    wanted = reading_of(server_args).config.warm_up
    if wanted is None:
        wanted = not runs_on_cpu(server_args)
    if wanted and cfg.disaggregation_mode != "null":
        logger.info("adaptive: no warm-up with prefill-decode disaggregation")
        return False
    return bool(wanted)


@contextmanager
def _one_at_a_time(server_args: Any) -> Iterator[None]:
    """Admit one HTTP worker at a time; the others wait, because none may be ready before the warm-up is over."""
    from sglang.srt.arg_groups.overrides import resolving_view

    if (resolving_view(server_args).tokenizer_worker_num or 1) == 1:
        yield
        return
    from sglang.srt.managers.multi_tokenizer_mixin import get_main_process_id

    # SGLang passes the workers their arguments in this shared memory; each server has its own.
    with open(f"/dev/shm/multi_tokenizer_args_{get_main_process_id()}", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        yield


class _Server:
    """An HTTP client of this process's server, as in SGLang's own warm-up."""

    def __init__(self, server_args: Any) -> None:
        from sglang.srt.arg_groups.overrides import resolved_view
        from sglang.srt.arg_groups.serving_hook import ssl_verify_of
        from sglang.srt.runtime_context import get_parallel, get_serving

        serving = get_serving()
        self._url = server_args.url()
        self._verify = ssl_verify_of(server_args)
        self._key, self._admin_key = serving.api_key, serving.admin_api_key or serving.api_key
        self._replicas = get_parallel().num_dp_ranks
        torch_draws = resolved_view(server_args).sampling_backend == "pytorch"
        self._needs_compiler = not (torch_draws and reading_of(server_args).config.exact)
        """Whether a sampled request does. PyTorch's sampler, which seeds need, has no module, nor an exact verify."""
        self._is_up = False
        self._draw = random.Random(0)
        self._progress: Progress

    def has_warmed_up(self) -> bool:
        """Whether another HTTP worker, or an earlier one, has run the warm-up."""
        self._wait_until_up()
        return self._states()[0]["adaptive"]["startup"]["warm_up_seconds"] is not None

    def warm_up(self) -> None:
        """Run all batch sizes greedily, a few with other parameters, then prompts; then flush the cache."""
        begun = time.perf_counter()
        seconds: dict[str, float] = {}
        with Progress(lambda line: logger.info("adaptive: warm-up: %s", line)) as self._progress:
            try:
                states = self._states()
                first = states[0]
                tiers, largest = first["adaptive"]["tiers"], _largest(states)
                built = [tier for state in states for tier in state["adaptive"]["startup"]["tiers"]]
                missed, compiles = [], False
                for name, request, sizes in (
                    ("greedy", GREEDY, batch_sizes(largest)),
                    ("logprobs", LOGPROBS, few_sizes(FEW_SIZES, built)),
                    ("penalties", PENALIZED, few_sizes(FEW_SIZES, built)),
                    ("grammar", GRAMMAR, few_sizes(GRAMMAR_SIZES, built) if _takes_grammars(first) else []),
                    ("sampled", SAMPLED, few_sizes(SAMPLED_SIZES, built)),
                    ("unfiltered", UNFILTERED, few_sizes(FEW_SIZES, built)),
                ):
                    pass_begun = time.perf_counter()
                    if request is SAMPLED:  # asked when the other passes have given the compiler time
                        compiles = not self._can_sample(states, compile_ahead.started)
                    # Unfiltered requests need one module, SGLang's verify; with rejection sampling it is Triton's.
                    in_triton = request is UNFILTERED and first.get("speculative_use_rejection_sampling")
                    fitting = [size for size in sizes if size <= largest]
                    if fitting and (in_triton or not compiles):
                        missed += self._pass(name, fitting, tiers, request)
                    seconds[name] = time.perf_counter() - pass_begun
                pass_begun = time.perf_counter()
                self._progress.now("prefills")
                self._prefills([size for size in PREFILL_SIZES if size <= largest])
                seconds["prefills"] = time.perf_counter() - pass_begun
            finally:
                if not self.is_ending():
                    self._set(END)
        self._send("POST", "/flush_cache?timeout=10.0", admin=True)
        logger.info(
            "adaptive: warmed up depths %s at batch sizes up to %d in %.1f s (%s), %d rounds%s",
            tiers,
            largest,
            time.perf_counter() - begun,
            ", ".join(f"{name} {spent:.1f}" for name, spent in seconds.items()),
            self._states()[0]["adaptive"]["startup"]["warm_up_rounds"],
            f"; not every depth ran at batch sizes {missed}" if missed else "",
        )

    def _prefills(self, sizes: Sequence[int]) -> None:
        """Run prompts at every size, without a cached prefix and, if the server caches any, with one."""
        longest = self._send("GET", "/server_info").json()["max_req_input_len"]
        prefix = self._tokens(min(PREFIX, longest // 2))
        self._generate([1], 1, GREEDY, prefix=prefix)
        many = [[PREFILL_TOKENS[0]] * (size - 1) + [length] for size in sizes for length in PREFILL_TOKENS]
        for before in ([], prefix):
            for lengths in (*([length] for length in SHORT), *many):
                texts = self._generate(lengths, 1, GREEDY, prefix=before)
                if before and not texts[0]["meta_info"]["cached_tokens"]:
                    return

    def _can_sample(self, states: Sequence[Mapping[str, Any]], compiler: Popen[bytes] | None) -> bool:
        """Return whether a sampled request would compile nothing; otherwise run one once the compiler is done."""
        needs = self._needs_compiler or any("exact" in state["adaptive"]["off"] for state in states)
        if not needs or compiler is None or compiler.poll() == 0:
            return True
        if compiler.poll() is not None:
            logger.warning("adaptive: no sampled warm-up, because its kernels could not be compiled; see above")
            return False
        logger.info("adaptive: sampling kernels are still being compiled; the server does not wait for them")
        threading.Thread(target=self._sample_later, args=(compiler,), name="sampled warm-up", daemon=True).start()
        return False

    def _sample_later(self, compiler: Popen[bytes]) -> None:
        with suppress(ServerEnds, TimeoutExpired):
            if compiler.wait(REQUEST_SECONDS) == 0:
                self._generate([LONG], 2, SAMPLED)
                logger.info("adaptive: sampling kernels are compiled and loaded")

    def _pass(self, name: str, sizes: Sequence[int], tiers: Sequence[int], request: Mapping[str, Any]) -> list[int]:
        """Run every size with requests like *request*; return the sizes at which not all steps ran on every replica."""
        self._set(BEGIN)
        missed = list(sizes)
        for attempt in range(ATTEMPTS):
            # The first attempt assumes that every draft of random text is rejected, which makes one token per round.
            tokens = (len(tiers) + 1) * (attempt + 1) ** 2
            for done, size in enumerate(missed):
                self._progress.now(f"{name} batches of {size}, {done} of {len(missed)} sizes are done")
                # One prompt is long and the others are short, so that prefills of several lengths run as well.
                lengths = [5 + row % 12 if row else LONG + size for row in range(size)]
                self._generate(lengths, tokens, request)
            covered = [state["adaptive"]["startup"]["warmed_batch_sizes"] for state in self._states()]
            missed = [size for size in missed if not all(size in replica for replica in covered)]
            if not missed:
                break
        return missed

    def _generate(
        self, lengths: Sequence[int], tokens: int, request: Mapping[str, Any], prefix: Sequence[int] = ()
    ) -> list[dict[str, Any]]:
        """Run prompts of *lengths* tokens after *prefix* at once on each replica; one message makes them one batch."""
        # Drawn again each time, because a prompt in the prefix cache would be a shorter prefill.
        prompts = [[*prefix, *self._tokens(length)] for length in [*lengths] * self._replicas]
        parameters = {**request["sampling_params"], "max_new_tokens": tokens, "ignore_eos": True}
        body = {**request, "input_ids": prompts, "sampling_params": parameters}
        texts: list[dict[str, Any]] = self._send("POST", "/generate", body).json()
        return texts

    def _tokens(self, length: int) -> list[int]:
        return [self._draw.randrange(VOCABULARY) for _ in range(length)]

    def _states(self) -> list[dict[str, Any]]:
        states: list[dict[str, Any]] = self._send("GET", "/server_info").json()["internal_states"]
        return states

    def _set(self, value: int) -> None:
        """Tell the schedulers without a request, which a client could send as well."""
        told = asyncio.run_coroutine_threadsafe(to_schedulers({WARM_UP_KEY: value}), manager().event_loop)
        told.result(TOLD_SECONDS)

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                self._send("GET", "/model_info", timeout=5.0)
                self._is_up = True
                return
            except requests.exceptions.RequestException:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)

    def is_ending(self) -> bool:
        """Whether the server was told to end, or no longer listens."""
        try:
            self._send("GET", "/model_info", timeout=5.0)
        except ServerEnds:
            return True
        except requests.exceptions.ConnectionError:
            return self._is_up
        except Exception:
            pass
        return False

    def _send(
        self, method: str, path: str, body: Any = None, *, admin: bool = False, timeout: float = REQUEST_SECONDS
    ) -> requests.Response:
        if _was_told_to_end():
            raise ServerEnds
        key = self._admin_key if admin else self._key
        answer = requests.request(
            method,
            self._url + path,
            json=body,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=timeout,
            verify=self._verify,
        )
        answer.raise_for_status()
        return answer


def _was_told_to_end() -> bool:
    return bool(manager().gracefully_exit)


def _takes_grammars(state: Mapping[str, Any]) -> bool:
    """Whether a server of *state* masks logits with a Triton kernel, which xgrammar does; it needs the tokenizer."""
    return state.get("grammar_backend") == "xgrammar" and not state["skip_tokenizer_init"]


def _largest(states: Sequence[Mapping[str, Any]]) -> int:
    """Return the largest batch of the warm-up: that of the largest graph, but no more requests than run at once."""
    graphs = [
        max(tier["graph_batch_sizes"], default=MOST_WITHOUT_GRAPHS)
        for state in states
        for tier in state["adaptive"]["startup"]["tiers"]
        if tier["graph_batch_sizes"] is not None
    ]
    running = min(state["effective_max_running_requests_per_dp"] for state in states)
    return int(max(1, min(running, max(graphs, default=MOST_WITHOUT_GRAPHS))))
