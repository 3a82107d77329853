"""Tells equal tokens, bfloat16 ties and errors apart, from tokens and log-probabilities alone.

Greedy decoding takes the likeliest token. Where two are almost as likely, another batch size or another kernel may take
the other one, and the texts part; so a server's text is judged token by token by what the server without speculation
makes of the same text read as a prompt. The *gap* of a token is how much likelier, in nats, the likeliest token was.
The reference's own texts have gaps as well: the largest of them, times ``MARGIN``, bounds a tie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

MARGIN = 2.0
"""Ties may have gaps up to this times the reference's own largest: more tokens are judged than it was measured on."""

SMALLEST_BOUND = 0.02
"""Nats. Log-probabilities of bfloat16 logits near 4 are not known better."""

EQUAL, TIE, DIFFERENT = "equal", "tie", "different"


def gaps(answer: Mapping[str, Any], output: Sequence[int]) -> list[float]:
    """Return the gap of each token of *output*, in nats.

    *answer* is SGLang's, with the log-probabilities of a prompt that ends with *output*: ``input_token_logprobs`` and
    ``input_top_logprobs`` in ``meta_info``, entries (log-probability, token id, text). Raises ValueError when they are
    of other tokens.
    """
    meta = answer["meta_info"]
    own = meta["input_token_logprobs"][-len(output) :]
    top = meta["input_top_logprobs"][-len(output) :]
    if [entry[1] for entry in own] != list(output):
        raise ValueError("the log-probabilities are of other tokens than the output")
    return [max(0.0, best[0][0] - entry[0]) for entry, best in zip(own, top, strict=True)]


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
    """First token that differs, from 0."""

    expected: int | None = None
    got: int | None = None
    gap: float | None = None
    """At the first difference, in nats."""

    worst: float | None = None
    """Largest gap of the text, in nats."""

    over: int = 0
    """Tokens of the text with a gap above the bound."""


def judged(expected: Sequence[int], got: Sequence[int], found: Sequence[float] | None, largest: float) -> Text:
    """Return the verdict on *got*, which should be *expected*; *found* are its gaps, None where it is equal.

    A text of another length is different, whatever its gaps.
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


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None


def counted(texts: Sequence[Text]) -> dict[str, Any]:
    """Return the numbers of each verdict, the largest gap, and the first texts that are different."""
    worst = [text.worst for text in texts if text.worst is not None]
    return {
        **{verdict: sum(text.verdict == verdict for text in texts) for verdict in (EQUAL, TIE, DIFFERENT)},
        "worst_gap": max(worst, default=0.0),
        "tokens_over_bound": sum(text.over for text in texts),
        "differences": [asdict(text) for text in texts if text.verdict == DIFFERENT][:4],
    }


LOSSLESS, WRONG, REFUSED, FAILED, UNFINISHED = "lossless", "wrong tokens", "refused", "failed", "unfinished"
OPEN = "open"
"""Single tokens that the reference would not take, in texts that are otherwise as likely as its own."""

WRONG_SHARE, A_FEW = 0.05, 5
"""By what share of its tokens, and by how many at least, a run has more unlikely ones than the reference when a state
or a key is wrong: that changes every token after it."""


def of_family(record: Mapping[str, Any]) -> str:
    """Return what a family's record shows: LOSSLESS needs every depth, forced and switched, and no different text.

    A wrong state changes every token after it, so texts that differ in single tokens alone are OPEN. Where one token of
    the reference has a large gap, every text is a tie; the share of unlikely tokens tells a wrong state there, too.
    """
    runs = record.get("runs", [])
    different = [run for run in runs if run[DIFFERENT]]
    if any(_is_wrong(run, record.get("reference", {})) for run in runs):
        return WRONG
    if different:
        return OPEN
    if record.get("error"):
        return FAILED
    if record.get("active") is False:
        return REFUSED
    taken = {run["how"] for run in runs}
    wanted = {f"depth {steps}" for steps in record.get("depths", [])} | {"switching", "policy"}
    return LOSSLESS if record.get("depths") and wanted <= taken else UNFINISHED


def _is_wrong(run: Mapping[str, Any], reference: Mapping[str, Any]) -> bool:
    """Compare with the reference's texts of the same batch: one of 8 requests may be four times as noisy as all are."""
    share = run.get("unlikely_tokens", float(run[DIFFERENT] > 0))
    usual = reference.get("unlikely_by_batch", {}).get(str(run.get("batch")), reference.get("unlikely_tokens", 0.0))
    return (share - usual) * run["tokens"] > max(WRONG_SHARE * run["tokens"], A_FEW)
