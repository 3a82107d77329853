"""Drive a live server with the real pair's prompts: no simulation.

    python -m benchmarks.real_pair.serve --url URL --prompts prompts.json --json F [--plain URL]

Four questions, each a part of the JSON or two: how fast every depth and the policy serve each family of prompts and a
sequence that alternates them, greedy and sampled at temperature 1; whether greedy output equals the plain server's;
whether tokens sampled at temperature 1 follow the target's distribution while depths switch; and how long accepted
drafts are by depth and context length.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sglang_adaptive.client import Client

Ids = list[int]
TOKENS = 192
PHASE_TOKENS = 256
CONCURRENCY = (1, 16)
PHASES = ("code", "noise", "prose", "code", "noise", "prose")
CONTEXT_TIERS = (1, 3, 7)
SAMPLES, SAMPLES_A_CALL = 20_000, 500
LEAST_EXPECTED = 20.0
"""Counts below this are pooled, as a chi-square test asks for."""
TIE_NATS = 0.0625 + 1e-3
"""Two logits this near are a tie in bfloat16: it has 8 bits, and one step between 8 and 16 is 1/16."""


def main() -> int:
    """Run every part that the options allow; a part that fails is noted and the next one runs."""
    options = _parse()
    client = Client.from_url(options.url)
    prompts = json.loads(options.prompts.read_text())
    tiers = [int(tier) for tier in options.tiers.split(",")]
    families: dict[str, list[Ids]] = prompts["families"]
    parts: dict[str, Callable[[], Any]] = {
        "depths": lambda: depths(client, families, tiers),
        "switching": lambda: switching(client, families, tiers),
        "sampled": lambda: switching(client, families, tiers, temperature=1.0),
        "contexts": lambda: contexts(client, prompts["contexts"], [tier for tier in CONTEXT_TIERS if tier in tiers]),
    }
    if options.plain:
        plain = Client.from_url(options.plain)
        parts["lossless"] = lambda: lossless(client, plain, families)
        parts["sampling"] = lambda: sampling(client, plain, families["code"], tiers)
    found: dict[str, Any] = {"what": "a real pair, no simulation", "note": options.note, "tiers": tiers}
    for name in options.parts.split(",") if options.parts else parts:
        begin = time.monotonic()
        try:
            found[name] = parts[name]()
        except Exception as error:  # a lent machine: keep what there is
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
        print(f"{name}: {time.monotonic() - begin:.0f} s", flush=True)
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


def depths(client: Client, families: dict[str, list[Ids]], tiers: Sequence[int]) -> list[dict[str, Any]]:
    """Tokens/s and accept length of every family, at every depth held and under the policy (steps None)."""
    rows = []
    for concurrency in CONCURRENCY:
        for family, prompts in families.items():
            for steps in (*tiers, None):
                _force(client, steps)
                _serve(client, prompts[:concurrency], TOKENS // 2)
                found = _serve(client, prompts[:concurrency], TOKENS)
                rows.append({"family": family, "concurrency": concurrency, "steps": steps, **found})
    _force(client, None)
    return rows


def switching(
    client: Client, families: dict[str, list[Ids]], tiers: Sequence[int], temperature: float = 0.0
) -> list[dict[str, Any]]:
    """Seconds for the same alternating phases at every depth held and under the policy, twice over.

    Greedy text of a small model repeats itself, which a draft foretells; sampled text does not.
    """
    rows = []
    for concurrency in CONCURRENCY:
        for steps in (*tiers, None) * 2:
            _force(client, steps)
            phases = [_serve(client, families[family][:concurrency], PHASE_TOKENS, temperature) for family in PHASES]
            seconds = sum(phase["seconds"] for phase in phases)
            tokens = sum(phase["tokens"] for phase in phases)
            row = {
                "concurrency": concurrency,
                "steps": steps,
                "seconds": seconds,
                "tokens_per_second": tokens / seconds,
            }
            rows.append({**row, "phases": dict(enumerate(phases))})
    _force(client, None)
    return rows


def contexts(client: Client, prompts: dict[str, list[Ids]], tiers: Sequence[int]) -> list[dict[str, Any]]:
    """Accept length by depth and by the length of the context, one request at a time."""
    rows = []
    for steps in tiers:
        _force(client, steps)
        for length, some in prompts.items():
            served = [_serve(client, [prompt], TOKENS) for prompt in some]
            rounds, tokens = (sum(found[key] for found in served) for key in ("rounds", "tokens"))
            rows.append({"context": int(length), "steps": steps, "accept_length": tokens / rounds if rounds else None})
    _force(client, None)
    return rows


def lossless(client: Client, plain: Client, families: dict[str, list[Ids]]) -> dict[str, Any]:
    """Compare greedy output with the plain server's, prompt by prompt; a difference is traced to its first token."""
    found: dict[str, Any] = {}
    for family, prompts in families.items():
        one = [answer["output_ids"] for answer in client.generate(prompts, TOKENS, ignore_eos=True)]
        other = [answer["output_ids"] for answer in plain.generate(prompts, TOKENS, ignore_eos=True)]
        differing = [_first_difference(plain, p, a, b) for p, a, b in zip(prompts, one, other, strict=True) if a != b]
        found[family] = {
            "prompts": len(prompts),
            "equal": len(prompts) - len(differing),
            "ties": sum(gap <= TIE_NATS for gap in differing),
            "gaps_nats": differing,
        }
    return found


def _first_difference(plain: Client, prompt: Ids, one: Ids, other: Ids) -> float:
    """Return how far apart, in nats, the plain server holds the two tokens that the outputs first differ in."""
    at = next(i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
    top = _next_logprobs(plain, prompt + other[:at])
    return round(abs(top[one[at]] - top[other[at]]), 5)


def sampling(client: Client, plain: Client, prompts: list[Ids], tiers: Sequence[int]) -> dict[str, Any]:
    """Chi-square of the token after a fixed prefix against the target's distribution, while depths switch.

    The first new token comes from prefill. The prefix is therefore a prompt and its likeliest first token; of all
    samples those that begin with it are counted, by their second token, which a verify chose. The prompt is the one
    of *prompts* whose samples say most: many begin with the prefix, and what follows is open.

    The same is drawn from the plain server: its test says how far the reference itself is off, which comes from
    another kernel and is of bfloat16.
    """
    choices = [_continuation(plain, prompt) for prompt in prompts]
    prompt, begins, share, second = max(choices, key=lambda choice: choice[2] * _entropy(choice[3]))
    # Every depth has its share of the samples.
    drawn = _draw(client, prompt, begins, second, lambda call: _force(client, tiers[call % len(tiers)]))
    _force(client, None)
    control = _draw(plain, prompt, begins, second, lambda call: None)
    return {
        "prefix_probability": share, "entropy_nats": _entropy(second), **drawn, "without_speculation": control,
    }  # fmt: skip


def _draw(
    client: Client, prompt: Ids, begins: int, second: dict[int, float], before: Callable[[int], None]
) -> dict[str, Any]:
    counts: Counter[int] = Counter()
    drawn = 0
    for call in range(10 * SAMPLES // SAMPLES_A_CALL):
        before(call)
        for answer in client.generate([prompt] * SAMPLES_A_CALL, 6, ignore_eos=True, temperature=1.0):
            drawn += 1
            ids = answer["output_ids"]
            if ids[0] == begins:
                counts[ids[1]] += 1
        if sum(counts.values()) >= SAMPLES:
            break
    return {"drawn": drawn, **chi_square(counts, second)}


def _continuation(plain: Client, prompt: Ids) -> tuple[Ids, int, float, dict[int, float]]:
    """Return *prompt*, its likeliest next token, the probability of that, and what may follow both."""
    first = _next_logprobs(plain, prompt)
    begins = max(first, key=lambda token: first[token])
    return prompt, begins, math.exp(first[begins]), _next_logprobs(plain, [*prompt, begins])


def _entropy(logprobs: dict[int, float]) -> float:
    return -sum(math.exp(one) * one for one in logprobs.values())


def chi_square(counts: Counter[int], logprobs: dict[int, float]) -> dict[str, Any]:
    """Return statistic, degrees of freedom and p-value of *counts* against exp(*logprobs*), rare tokens pooled.

    The p-value is from the Wilson-Hilferty normal approximation, good to a few percent of itself.
    """
    total = sum(counts.values())
    cells: list[tuple[float, int]] = []
    pooled, pooled_count, named = 0.0, total, 0.0
    for token, logprob in logprobs.items():
        expected = total * math.exp(logprob)
        if expected >= LEAST_EXPECTED:
            cells.append((expected, counts[token]))
            pooled_count -= counts[token]
            named += expected
    pooled = total - named
    if pooled >= LEAST_EXPECTED:
        cells.append((pooled, pooled_count))
    statistic = sum((seen - expected) ** 2 / expected for expected, seen in cells)
    freedom = max(1, len(cells) - 1)
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    p = 0.5 * math.erfc(z / math.sqrt(2))
    return {"samples": total, "chi_square": statistic, "degrees_of_freedom": freedom, "p_value": p}


def _next_logprobs(client: Client, prefix: Ids) -> dict[int, float]:
    body = {
        "input_ids": prefix,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 1, "ignore_eos": True},
        "return_logprob": True,
        "top_logprobs_num": 256,
    }
    top = client.post("/generate", body)["meta_info"]["output_top_logprobs"][0]
    return {int(token): float(logprob) for logprob, token, _ in top}


def _serve(client: Client, prompts: list[Ids], tokens: int, temperature: float = 0.0) -> dict[str, Any]:
    begin = time.perf_counter()
    answers = client.generate(prompts, tokens, ignore_eos=True, temperature=temperature)
    seconds = time.perf_counter() - begin
    rounds = sum(answer["meta_info"].get("spec_verify_ct") or 0 for answer in answers)
    total = sum(answer["meta_info"]["completion_tokens"] for answer in answers)
    return {
        "seconds": seconds,
        "tokens": total,
        "rounds": rounds,
        "tokens_per_second": total / seconds,
        "accept_length": total / rounds if rounds else None,
    }


def _force(client: Client, steps: int | None) -> None:
    if client.force_steps(steps) != [True]:
        raise RuntimeError(f"the server refused {steps} steps")


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--url", required=True, help="the adaptive server")
    parser.add_argument("--plain", help="the same target without speculation: for lossless and sampling")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--tiers", default="0,1,2,3,5,7")
    parser.add_argument("--parts", help="some of depths,switching,sampled,contexts,lossless,sampling; default: all")
    parser.add_argument("--note", default="", help="kept in the JSON: what is special about the server")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
