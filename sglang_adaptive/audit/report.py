"""The findings of an audit, as a table and as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from sglang_adaptive import ties
from sglang_adaptive.audit.audit import Compared, Found, Way

SHOWN = 8
"""How many wrong texts are printed; JSON has all."""
Key = TypeVar("Key", bound=Hashable)
VERDICTS = (ties.EQUAL, ties.TIE, ties.WRONG)


def is_sound(found: Found) -> bool:
    """Return whether no text and no distribution is wrong, and the reference agrees with itself."""
    return not found.wrong() and not any(one["wrong"] for one in found.samples) and _agrees(found)


def _agrees(found: Found) -> bool:
    return 2 * found.noise <= ties.CEILING


def as_json(found: Found, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return everything as JSON builtins; *about* describes the audit; prompt texts are not included."""
    return {
        **about,
        "sound": is_sound(found),
        "texts": len(found.compared),
        "passes": found.passes,
        "noise_nats": found.noise,
        "tie_nats": found.width,
        "ways": [
            {"way": way.name, "at_once": way.at_once, **_counted(group, found.width)}
            for way, group in _groups(found, lambda one: one.way).items()
        ],
        "kinds": [
            {"kind": kind, **_counted(group, found.width)}
            for kind, group in _groups(found, lambda one: one.question.kind).items()
        ],
        "wrong": [_wrong(one) for one in found.wrong()],
        "sampled": found.samples,
        "left_out": found.left_out,
    }


def _groups(found: Found, key: Callable[[Compared], Key]) -> dict[Key, list[Compared]]:
    groups: dict[Key, list[Compared]] = {}
    for one in found.compared:
        groups.setdefault(key(one), []).append(one)
    return groups


def _counted(group: Sequence[Compared], width: float) -> dict[str, Any]:
    verdicts = Counter(one.verdict(width) for one in group)
    gaps = [one.parting.gap for one in group if one.parting is not None and one.verdict(width) == ties.TIE]
    counts = {verdict: verdicts[verdict] for verdict in VERDICTS}
    return {"texts": len(group), **counts, "largest_tie_nats": max(gaps, default=0.0)}


def _wrong(one: Compared) -> dict[str, Any]:
    parted = one.parting
    told: dict[str, Any] = {
        "text": one.number, "way": one.way.name, "at_once": one.way.at_once, "kind": one.question.kind,
        "prompt": one.question.prompt,
    }  # fmt: skip
    if one.refused:
        told["refused"] = one.refused
    elif parted is not None:
        gap = None if math.isinf(parted.gap) else parted.gap
        told |= {"token": parted.at, "got": parted.own, "expected": parted.other, "gap_nats": gap}
    if one.differ:
        told["log_probability_differs_nats"] = one.differ
    return told


def table(found: Found, against: str, batch: int) -> Iterator[str]:
    """Yield the lines of the table and the verdict; *against* names the reference."""
    yield f"{'':<32}{'texts':>8}{'equal':>8}{'ties':>8}{'wrong':>8}{'largest tie':>13}"
    ways = sorted(_groups(found, lambda one: one.way).items(), key=lambda item: _order(item[0]))
    for name, group in [*((str(way), group) for way, group in ways), ("all", found.compared)]:
        row = _counted(group, found.width)
        counts = "".join(f"{row[column]:>8}" for column in ("texts", *VERDICTS))
        yield f"{name:<32}{counts}{row['largest_tie_nats']:>13.4g}"
    for name in dict.fromkeys(one["way"] for one in found.samples):
        of_way = [one for one in found.samples if one["way"] == name]
        tests, least = sum(one["comparisons"] for one in of_way), min(one["least_probability"] for one in of_way)
        wrong = sum(one["wrong"] for one in of_way)
        yield f"{f'{name}, sampled':<32}{tests:>8}{tests - wrong:>8}{'':>8}{wrong:>8}   p >= {least:.1e}"
    yield (
        f"A tie: tokens that {against} puts within {found.width:.2g} nats; its own log-probabilities differ by up to "
        f"{found.noise:.2g} between 1 and {batch} requests at once, and when it reads its own output."
    )
    if found.left_out:
        name, why = next(iter(found.left_out.items()))
        yield f"Left out, because {against} does not answer: {len(found.left_out)} questions, such as {name}: {why}"
    yield from _faults(found)


def _order(way: Way) -> tuple[bool, int, str, int]:
    steps = way.name.partition(" ")[0]
    return not steps.isdecimal(), int(steps) if steps.isdecimal() else 0, way.name, way.at_once


def _faults(found: Found) -> Iterator[str]:
    wrong = found.wrong()
    for one in wrong[:SHOWN]:
        yield f"Wrong: {one.way}, {one.question.name}: {_words(one, found.width)}"
    if len(wrong) > SHOWN:
        yield f"... and {len(wrong) - SHOWN} more; --json FILE has all of them"
    for sample in found.samples:
        if sample["wrong"]:
            yield (
                f"Wrong: {sample['way']}, sampled with {sample['sampling']}: {sample['where']}, "
                f"p = {sample['least_probability']:.1e}"
            )
    if not _agrees(found):
        yield (
            f"Wrong: the reference differs from itself by {found.noise:.3g} nats in another batch, which rounding "
            "does not explain; comparisons with it say little"
        )
    if is_sound(found):
        times = {0: "less than once: the time ran out", 1: "once"}.get(found.passes, f"{found.passes} times")
        yield f"Verdict: no wrong token in {len(found.compared)} texts; each question asked {times}."
    else:
        first = f", the first after {wrong[0].number}" if wrong else ""
        drawn = sum(sample["wrong"] for sample in found.samples)
        more = f" and {drawn} of {len(found.samples)} distributions" if drawn else ""
        yield f"Verdict: {len(wrong)} of {len(found.compared)} texts{more} are wrong{first}."


def _words(one: Compared, width: float) -> str:
    if one.refused:
        return one.refused
    parted = one.parting
    if parted is not None and parted.gap > width:
        if parted.own is None or parted.other is None:
            shorter = "this" if parted.own is None else "the reference's"
            return f"{shorter} text ends after {parted.at} tokens"
        return f"token {parted.at} is {parted.own}, {parted.gap:.3g} nats less likely than {parted.other}"
    return f"a log-probability differs by {one.differ:.3g} nats"
