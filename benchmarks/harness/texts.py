"""Greedy outputs compared with those of a server without speculation: equal, a tie, or different.

Greedy decoding takes the likeliest token. If two are almost equally likely, another batch size or kernel may take the
other one, and outputs diverge. So a text is judged token by token by the reference, which reads the same text as a
prompt. The *gap* of a token is how much likelier, in nats, the likeliest token was. The reference's own texts have gaps
as well, because prefill and decode round differently: the largest gap times ``MARGIN`` bounds a tie.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.harness.load import greedy
from sglang_adaptive import ties
from sglang_adaptive.client import Client

Ids = Sequence[int]
MARGIN = 2.0
"""Ties may have gaps up to this times the reference's own largest: more tokens are judged than it was measured on."""

SMALLEST_BOUND = 0.02
"""Nats. Log-probabilities of bfloat16 logits near 4 are not more accurate."""

DOUBTED = 3
"""Up to this many tokens of a text above the bound, the reference is asked again; more are an error."""

BATCHES = (1, 4, 32)
"""Batch sizes in which the reference is asked about a doubted token."""

EQUAL, TIE, DIFFERENT = "equal", "tie", "different"


def prompts(count: int, vocabulary: int) -> list[list[int]]:
    """Return *count* prompts of 12 to 150 token ids, the same ones in every run; one in four is long."""
    draw = random.Random(20)
    lengths = [draw.randrange(110, 150) if index % 4 == 1 else draw.randrange(12, 60) for index in range(count)]
    return [[draw.randrange(16, vocabulary) for _ in range(length)] for length in lengths]


@dataclass(frozen=True)
class Answers:
    """The output tokens of each request, and what its rounds accepted."""

    outputs: list[list[int]]
    rounds: int
    """Verify rounds, summed over the requests; 0 without speculation."""
    accepted: int
    """Drafts accepted, summed over the requests."""


def ask(server: Client, wanted: Sequence[Ids], new_tokens: int, apart: float = 0.0) -> Answers:
    """Send *wanted* and return the greedy answers: as one batch, or each *apart* seconds after the one before.

    Raises RequestError or OSError.
    """

    def late(place: int, prompt: Ids) -> Any:
        time.sleep(place * apart)
        return server.generate(list(prompt), new_tokens, ignore_eos=True)

    if apart:
        with ThreadPoolExecutor(len(wanted)) as pool:
            answers = list(pool.map(late, range(len(wanted)), wanted))
    else:
        answers = server.generate([list(prompt) for prompt in wanted], new_tokens, ignore_eos=True)
        answers = answers if isinstance(answers, list) else [answers]
    outputs = [list(answer["output_ids"]) for answer in answers]
    rounds = [int(answer["meta_info"].get("spec_verify_ct") or 0) for answer in answers]
    # Prefill yields the first token; every round adds one token of its own.
    accepted = [max(0, len(out) - 1 - done) if done else 0 for out, done in zip(outputs, rounds, strict=True)]
    return Answers(outputs, sum(rounds), sum(accepted))


@contextmanager
def switching(server: Client, depths: Sequence[int], seconds: float) -> Iterator[None]:
    """Force *depths* in turn, each for *seconds*, while the block runs; release them at the end."""
    done = threading.Event()

    def switch() -> None:
        order = random.Random(7)
        while not done.wait(seconds):
            server.force_steps(order.choice(list(depths)))

    thread = threading.Thread(target=switch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(30)
        server.force_steps(None)


def score(reference: Client, prompt: Ids, output: Ids) -> dict[str, Any]:
    """Return the reference's log-probabilities of every token of *output* after *prompt*, read as one prompt."""
    answer: dict[str, Any] = reference.post("/generate", {**ties.as_prompt(prompt, output), "top_logprobs_num": 1})
    return answer


def gaps(answer: Mapping[str, Any], output: Ids) -> list[float]:
    """Return the gap of each token of *output*, in nats.

    *answer* is SGLang's, with the log-probabilities of a prompt that ends with *output*: ``input_token_logprobs`` and
    ``input_top_logprobs`` in ``meta_info``, entries (log-probability, token id, text). Raises ValueError if they are
    for other tokens.
    """
    own = answer["meta_info"]["input_token_logprobs"][-len(output) :]
    top = answer["meta_info"]["input_top_logprobs"][-len(output) :]
    # SGLang 0.5.23 reports a vocabulary's last token as 0, because it takes it for a padded image.
    if any(entry[1] not in (token, 0) for entry, token in zip(own, output, strict=True)):
        raise ValueError("the log-probabilities are for other tokens than the output")
    return [max(0.0, best[0][0] - entry[0]) for entry, best in zip(own, top, strict=True)]


def takes(reference: Client, prompt: Ids, output: Ids, at: int) -> bool:
    """Return whether the reference itself takes token *at* of *output* after those before it, in some batch size.

    A mixture of experts may send a token to another expert in another batch; its gap is then as large as an error's.
    """
    read = [*prompt, *output[:at]]
    return any([output[at]] in ask(reference, [read] * batch, 1).outputs for batch in BATCHES)


def bound(of_reference: Sequence[float]) -> float:
    """Return the largest gap of a tie, in nats, from the gaps of the reference's own tokens."""
    return max(SMALLEST_BOUND, MARGIN * max(of_reference, default=0.0))


def unlikely(found: Sequence[float]) -> int:
    """Return how many of the gaps *found* are above ``SMALLEST_BOUND``; a wrong state raises their share at once."""
    return sum(gap > SMALLEST_BOUND for gap in found)


@dataclass(frozen=True)
class Text:
    """The verdict on one request's text."""

    verdict: str
    position: int | None = None
    """Index of the first token that differs."""
    expected: int | None = None
    got: int | None = None
    gap: float | None = None
    """Gap at the first difference, in nats."""
    worst: float | None = None
    """Largest gap of the text, in nats."""
    over: int = 0
    """Tokens of the text with a gap above the bound."""


def judged(expected: Ids, got: Ids, found: Sequence[float] | None, largest: float) -> Text:
    """Return the verdict on *got*, which should be *expected*; *found* are its gaps, None if it is equal.

    A text of another length is different, regardless of its gaps.
    """
    if list(expected) == list(got):
        return Text(EQUAL)
    pairs = zip(expected, got, strict=False)
    position = next((at for at, (one, other) in enumerate(pairs) if one != other), min(len(expected), len(got)))
    at = {"position": position, "expected": _at(expected, position), "got": _at(got, position)}
    if found is None or len(expected) != len(got):
        return Text(DIFFERENT, **at)
    over = sum(gap > largest for gap in found)
    return Text(DIFFERENT if over else TIE, **at, gap=found[position], worst=max(found), over=over)


def _at(tokens: Ids, position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def counted(texts: Sequence[Text]) -> dict[str, Any]:
    """Return the count of each verdict, the largest gap, and the first different texts."""
    return {
        **{verdict: sum(text.verdict == verdict for text in texts) for verdict in (EQUAL, TIE, DIFFERENT)},
        "worst_gap": max((text.worst for text in texts if text.worst is not None), default=0.0),
        "tokens_over_bound": sum(text.over for text in texts),
        "differences": [asdict(text) for text in texts if text.verdict == DIFFERENT][:4],
    }


class Judge:
    """Judges texts by a server without speculation, which generated its own for the same prompts under a *key*.

    A key identifies how they were asked, for example the batch size.
    """

    def __init__(self, reference: Client, asked: Sequence[Ids], in_time: Callable[[], None] = lambda: None) -> None:
        """*in_time* is called before each request, and may raise."""
        self._reference, self._prompts, self._in_time = reference, asked, in_time
        self._expected: dict[Hashable, list[list[int]]] = {}
        self._own: dict[tuple[Hashable, int], list[float]] = {}

    def expect(self, key: Hashable, outputs: Sequence[Ids]) -> None:
        """Store the reference's *outputs* for the first prompts, and measure their gaps."""
        self._expected[key] = [list(output) for output in outputs]
        for index, output in enumerate(self._expected[key]):
            self._in_time()
            self._own[key, index] = gaps(score(self._reference, self._prompts[index], output), output)

    @property
    def bound(self) -> float:
        """Largest gap of a tie, in nats."""
        return bound(self._gaps())

    def about(self) -> dict[str, Any]:
        """Return a summary of the reference's own texts; differing ones are counted against the last key's."""
        found, last = self._gaps(), self._expected[next(reversed(self._expected))]
        pairs = [pair for own in self._expected.values() for pair in zip(own, last, strict=False)]
        return {
            "tokens": len(found),
            "largest_gap": max(found),
            "unlikely_tokens": unlikely(found) / len(found),
            "unlikely_by_batch": {
                str(key): unlikely(own) / len(own) for key in self._expected if (own := self._gaps(key))
            },
            "bound": self.bound,
            "texts_that_differ_between_runs": sum(own != other for own, other in pairs),
            "different_texts": len({tuple(text) for text in last}),
            "different_tokens": len({token for text in last for token in text}),
        }

    def judge(self, key: Hashable, outputs: Sequence[Ids]) -> dict[str, Any]:
        """Return the verdict on *outputs* for the first prompts: counts of equal texts, ties and different texts."""
        found = [self._judged(key, index, output) for index, output in enumerate(outputs)]
        tokens = sum(map(len, outputs))
        return {
            "tokens": tokens,
            "unlikely_tokens": sum(unlikely(own) for _, own in found) / tokens,
            **counted([text for text, _ in found]),
        }

    def _judged(self, key: Hashable, index: int, output: Ids) -> tuple[Text, Sequence[float]]:
        """Return the verdict on a text, and the gaps of its tokens."""
        expected, prompt = self._expected[key][index], self._prompts[index]
        if expected == list(output):
            return Text(EQUAL), self._own[key, index]
        self._in_time()
        found, largest = gaps(score(self._reference, prompt, output), output), self.bound
        doubted = [at for at, gap in enumerate(found) if gap > largest]
        if len(doubted) <= DOUBTED:
            for at in doubted:
                found[at] = 0.0 if takes(self._reference, prompt, output, at) else found[at]
        return judged(expected, output, found, largest), found

    def _gaps(self, key: Hashable | None = None) -> list[float]:
        return [gap for (at, _), own in self._own.items() if key in (None, at) for gap in own]


# -- sampled tokens -------------------------------------------------------------------------------------------------

LEAST_EXPECTED = 20.0
"""Counts below this are pooled, as a chi-square test requires."""


def likely(server: Client, prefix: Ids) -> dict[int, float]:
    """Return the log-probabilities of the 256 likeliest tokens after *prefix*, at temperature 1."""
    body = {"input_ids": list(prefix), "sampling_params": {**greedy(1), "temperature": 1.0}}
    answer = server.post("/generate", {**body, "return_logprob": True, "top_logprobs_num": 256})
    return {int(token): float(value) for value, token, _ in answer["meta_info"]["output_top_logprobs"][0]}


def entropy(logprobs: Mapping[int, float]) -> float:
    """Return the entropy of a distribution, in nats."""
    return -sum(math.exp(one) * one for one in logprobs.values())


def chi_square(counts: Counter[int], logprobs: Mapping[int, float]) -> dict[str, Any]:
    """Return statistic, degrees of freedom and p-value of *counts* against exp(*logprobs*), rare tokens pooled."""
    from scipy.stats import chi2  # seconds to import

    total = sum(counts.values())
    expected = {token: total * math.exp(one) for token, one in logprobs.items()}
    cells = [(many, counts[token]) for token, many in expected.items() if many >= LEAST_EXPECTED]
    rest = total - sum(many for many, _ in cells), total - sum(seen for _, seen in cells)
    cells += [rest] if rest[0] >= LEAST_EXPECTED else []
    statistic = sum((seen - many) ** 2 / many for many, seen in cells)
    freedom = max(1, len(cells) - 1)
    p = float(chi2.sf(statistic, freedom))
    return {"samples": total, "chi_square": statistic, "degrees_of_freedom": freedom, "p_value": p}
