"""What an audit prints and stores, and its exit code."""

from __future__ import annotations

import json
import math

from sglang_adaptive import ties
from sglang_adaptive.audit import report
from sglang_adaptive.audit.audit import SWITCHING, ZERO, Compared, Found, Way
from sglang_adaptive.audit.questions import Question

QUESTION = Question("code 1", "frequency penalty", {})


def compared(number: int, way: Way, gap: float | None = None, refused: str = "") -> Compared:
    parted = None if gap is None else ties.Parting(17, None if math.isinf(gap) else 68, 71, gap)
    return Compared(number, way, QUESTION, [], parted, refused=refused)


def lines(found: Found) -> list[str]:
    return list(report.table(found, "zero steps", 8))


def test_a_sound_server() -> None:
    ways = [Way(SWITCHING, 8), Way("11 steps", 1), Way("3 steps", 8), Way("3 steps", 1), Way(ZERO, 8)]
    found = Found([compared(number, way) for number, way in enumerate(ways, 1)], noise=0.02, passes=1)
    found.compared.append(compared(6, Way("3 steps", 8), 0.03))
    told = lines(found)
    shown = [line[:32].strip() for line in told[1:7]]
    assert shown == ["0 steps, 8 at once", "3 steps, alone", "3 steps, 8 at once", "11 steps, alone",
                     "switching, 8 at once", "all"]  # fmt: skip
    assert told[3].split()[-5:] == ["2", "1", "1", "0", "0.03"] and "within 0.04 nats" in told[7]
    assert told[-1] == "Verdict: no wrong token in 6 texts; each question asked once." and report.is_sound(found)


def test_what_is_wrong_is_named_and_kept() -> None:
    faults = [compared(2, Way("3 steps", 1), 1.5), compared(3, Way("3 steps", 8), math.inf),
              compared(4, Way(SWITCHING, 8), refused="refused: the grammar is closed")]  # fmt: skip
    found = Found([compared(1, Way("3 steps", 1)), *faults], noise=0.1)
    told = "\n".join(lines(found))
    assert (
        "Wrong: 3 steps, alone, frequency penalty, prompt code 1: token 17 is 68, 1.5 nats less likely than 71" in told
    )
    assert "this text ends after 17 tokens" in told and "refused: the grammar is closed" in told
    assert told.endswith("Verdict: 3 of 4 texts are wrong, the first after 2.")
    kept = json.loads(json.dumps(report.as_json(found, {"url": "here"}), allow_nan=False))
    assert (kept["sound"], kept["url"], [one["text"] for one in kept["wrong"]]) == (False, "here", [2, 3, 4])
    assert kept["ways"][0] == {"way": "3 steps", "at_once": 1, "texts": 2, "equal": 1, "tie": 0, "wrong": 1,
                               "largest_tie_nats": 0.0}  # fmt: skip


def test_a_reference_that_differs_from_itself_proves_nothing() -> None:
    found = Found([compared(1, Way("3 steps", 1))], noise=0.9)
    assert not report.is_sound(found)
    assert any(line.startswith("Wrong: the reference differs from itself by 0.9 nats") for line in lines(found))


def test_a_distribution_that_differs_is_wrong() -> None:
    test = {"way": SWITCHING, "sampling": {"temperature": 1.0}, "comparisons": 8, "least_probability": 1e-9,
            "where": "token 2", "wrong": True}  # fmt: skip
    found = Found([compared(1, Way("3 steps", 1))], samples=[test])
    assert not report.is_sound(found)
    told = "\n".join(lines(found))
    assert "Wrong: switching, sampled with {'temperature': 1.0}: token 2, p = 1.0e-09" in told
    assert told.endswith("Verdict: 0 of 1 texts and 1 of 1 distributions are wrong.")
