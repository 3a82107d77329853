"""Greedy text of the adaptive server against that of one without speculation, on ranks that are loaded unlike.

The texts are collected first and judged afterwards, so that the servers need not run at the same time.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any

from benchmarks.architectures.texts import NEW_TOKENS, prompts, score, takes
from benchmarks.architectures.verdicts import Text, bound, counted, gaps, judged, unlikely
from benchmarks.attention_dp.served.noise import Noise
from sglang_adaptive.client import Client

REQUESTS = 24
LAYOUTS: dict[str, Callable[[int], int]] = {
    "balanced": lambda at: at % 2,
    "skewed": lambda at: int(at % 8 == 0),
    "rank 1 idle": lambda at: 0,
    "rank 0 idle": lambda at: 1,
}
"""By name, the rank of each request."""
SWITCH_SECONDS = 0.02
DOUBTED = 3
"""Tokens of a text above the bound for which the reference is asked again; more are an error."""
Run = dict[str, Any]


def ask(server: Client, wanted: Sequence[Sequence[int]], layout: str) -> list[list[int]]:
    """Send *wanted*, each to its rank of *layout*, all at once, and return the greedy outputs."""
    ranks = [LAYOUTS[layout](at) for at in range(len(wanted))]
    found: list[list[int]] = [[] for _ in wanted]

    def of_rank(rank: int) -> None:
        own = [at for at, chosen in enumerate(ranks) if chosen == rank]
        parameters = {"temperature": 0, "max_new_tokens": NEW_TOKENS, "ignore_eos": True}
        body = {"input_ids": [list(wanted[at]) for at in own], "sampling_params": parameters, "routed_dp_rank": rank}
        for at, answer in zip(own, server.post("/generate", body), strict=True):
            found[at] = list(answer["output_ids"])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(of_rank, sorted(set(ranks))))
    return found


@contextmanager
def switching(server: Client, depths: Sequence[int]) -> Iterator[None]:
    """Force one of *depths* after the other while the block runs, and release them at its end."""
    done = threading.Event()

    def switch() -> None:
        order = random.Random(7)
        while not done.wait(SWITCH_SECONDS):
            server.force_steps(order.choice(list(depths)))

    thread = threading.Thread(target=switch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)
        server.force_steps(None)


def collect(server: Client, vocabulary: int, depths: Sequence[int], keep: Callable[[Run], None]) -> list[Run]:
    """Return the adaptive server's texts: at every held depth, the deepest first, while switching, and by its policy.

    *keep* gets each run when it is done. The last ones share the ranks with long prompts, bursts and aborted requests.
    """
    wanted = prompts(REQUESTS, vocabulary)
    runs: list[Run] = []

    def add(how: str, layout: str) -> None:
        runs.append({"how": how, "layout": layout, "outputs": ask(server, wanted, layout)})
        keep(runs[-1])

    for steps in sorted(depths, reverse=True):
        server.force_steps(steps)
        for layout in LAYOUTS:
            add(f"depth {steps}", layout)
    server.force_steps(None)
    for how, around in (("switching", switching(server, depths)), ("policy", nullcontext())):
        with around:
            for layout in LAYOUTS:
                add(how, layout)
    for rank, layout in ((1, "rank 1 idle"), (0, "rank 0 idle")):
        with Noise(server, rank, vocabulary) as noise, switching(server, depths):
            add(f"noise on rank {rank}", layout)
        runs[-1]["noise"] = noise.counts()
    return runs


class Judge:
    """Judges texts by a server without speculation, asked for the same prompts on the same ranks."""

    def __init__(self, reference: Client, vocabulary: int) -> None:
        self._reference, self._prompts = reference, prompts(REQUESTS, vocabulary)
        self._expected = {layout: ask(reference, self._prompts, layout) for layout in LAYOUTS}
        found = [
            gap
            for outputs in self._expected.values()
            for prompt, output in zip(self._prompts, outputs, strict=True)
            for gap in gaps(score(reference, prompt, output), output)
        ]
        self._bound = bound(found)
        first = self._expected["balanced"]
        self.about = {
            "bound": self._bound,
            "unlikely_tokens": unlikely(found) / len(found),
            "different_texts": len({tuple(text) for text in first}),
            "different_tokens": len({token for text in first for token in text}),
            "texts_that_differ_between_layouts": sum(
                one != other
                for outputs in self._expected.values()
                for one, other in zip(outputs, first, strict=True)
            ),
        }  # fmt: skip

    def judge(self, run: Run) -> Run:
        """Return what *run* comes to: texts that are equal, ties and different."""
        expected = self._expected[run["layout"]]
        texts = [self._text(*each) for each in zip(self._prompts, expected, run["outputs"], strict=True)]
        return {name: value for name, value in run.items() if name != "outputs"} | counted(texts)

    def _text(self, prompt: Sequence[int], expected: Sequence[int], output: Sequence[int]) -> Text:
        if list(expected) == list(output):
            return judged(expected, output, None, self._bound)
        found = gaps(score(self._reference, prompt, output), output)
        doubted = [at for at, gap in enumerate(found) if gap > self._bound]
        if len(doubted) <= DOUBTED:
            for at in doubted:
                found[at] = 0.0 if takes(self._reference, prompt, output, at) else found[at]
        return judged(expected, output, found, self._bound)
