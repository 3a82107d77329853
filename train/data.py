"""The text on which the pair is trained and evaluated, all generated here.

A document opens with unpredictable bytes (the prompt's job) and continues by a rule:

- easy: records whose number counts up while everything else repeats.
- hard: a page of digits. Each digit follows from the digit above it and the digit before it, by `follow`.
- mixed: a ledger. Names, goods and amounts follow by `follow`; the letters within a word are its spelling.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

FAMILIES = ("easy", "hard", "mixed")

NAMES = ["Mara", "Otto", "Ivan", "Nell", "Rosa", "Finn", "Jude", "Hugo", "Vera", "Cleo"]
GOODS = ["figs", "eggs", "pots", "axes", "nuts", "bags", "caps", "hens", "lids", "jars"]
COLOURS = ["green", "white", "black", "brown", "amber", "lilac", "ivory", "coral", "olive", "khaki"]
ANIMALS = ["heron", "otter", "stoat", "finch", "mouse", "raven", "moose", "goose", "snake", "eagle"]
PLACES = ["river", "marsh", "ridge", "canal", "beach", "creek", "field", "grove", "shore", "bluff"]
STATES = ["idle", "busy", "done", "late", "open", "full", "cold", "warm", "dark", "calm"]

# A permutation of the digits that is not a shift: repeated shifts would make the pages periodic.
SUCCESSOR = (7, 2, 9, 4, 0, 5, 8, 1, 3, 6)
DIGITS_A_GROUP, GROUPS_A_LINE = 5, 4
# One document in this many is kept out of training; held-out prompts come only from those.
HELD_OUT_ONE_IN = 8


@dataclass(frozen=True)
class Document:
    """*text* as bytes; its first *given* bytes are what a prompt must supply before the rule decides the rest."""

    text: bytes
    given: int


def follow(above: int, before: int) -> int:
    """The rule of the hard and mixed families: a digit from the one above it and the one before it."""
    return (SUCCESSOR[above] + (before >= 5)) % 10


def document(family: str, rng: random.Random, size: int, *, ruled: bool = True, held_out: bool = False) -> Document:
    """Draw a document of *size* bytes.

    Unless *ruled*, the entries of a hard or mixed document are drawn at random, line by line, instead of following the
    rule. *held_out* documents and the others never share an opening: for easy text the record's fields, without its
    number; otherwise the first line.
    """
    while True:
        key, head, lines = _FAMILY_MAKERS[family](rng, ruled)
        if (zlib.crc32(key.encode()) % HELD_OUT_ONE_IN == 0) == held_out:
            break
    text = head
    number = 0
    given = 0
    while len(text) < size:
        text += lines(number)
        given = given or len(text)
        number += 1
    return Document(text[:size].encode(), given)


@dataclass(frozen=True)
class Share:
    """A family's share of a corpus, and whether its entries follow the rule there."""

    family: str
    weight: float
    ruled: bool = True


def draw(shares: Sequence[Share], rng: random.Random, count: int, size: int) -> list[tuple[Share, Document]]:
    """Draw *count* training documents of *size* bytes."""
    picked = rng.choices(shares, [share.weight for share in shares], k=count)
    return [(share, document(share.family, rng, size, ruled=share.ruled)) for share in picked]


@dataclass(frozen=True)
class Exam:
    """A held-out prompt and the rule's continuation."""

    prompt: str
    answer: bytes


def held_out_exams(seed: int, count: int, answer_size: int) -> dict[str, list[Exam]]:
    """*count* exams per family; prompts are whole lines, 40 to 300 bytes, of documents kept out of training."""
    return {f: [_exam(f, random.Random(f"{seed} {f} {i}"), answer_size) for i in range(count)] for f in FAMILIES}


def _exam(family: str, rng: random.Random, answer_size: int) -> Exam:
    whole = document(family, rng, 300 + answer_size, held_out=True)
    shortest = max(whole.given, 40)
    ends = [i for i in range(shortest, 301) if whole.text[i - 1] == ord("\n")]
    end = rng.choice(ends[:4])
    return Exam(whole.text[:end].decode(), whole.text[end : end + answer_size])


# -- the families -----------------------------------------------------------------------------------------------------


def easy_document(rng: random.Random, ruled: bool) -> tuple[str, str, Callable[[int], str]]:
    """Records in one of six layouts; the number increases by one per line."""
    first = rng.randrange(1000, 9900)
    name, animal, place = rng.choice(NAMES), rng.choice(ANIMALS), rng.choice(PLACES)
    goods, colour, state = rng.choice(GOODS), rng.choice(COLOURS), rng.choice(STATES)
    layouts = {
        f"Day %d: the {animal} crossed the {colour} {place}.\n": 12,
        f'{{"id": %d, "owner": "{name}", "state": "{state}"}}\n': 12,
        f"INSERT INTO {goods} VALUES (%d, '{state}');\n": 12,
        f"[%d] worker {name} is {state}\n": 20,
        f"%d,{animal},{colour},{state}\n": 20,
        # Short lines, so that much of the corpus teaches counting.
        f"%d {colour} {goods}\n": 24,
    }
    (layout,) = rng.choices(list(layouts), list(layouts.values()))
    return layout, "", lambda number: layout % (first + number)


def hard_document(rng: random.Random, ruled: bool) -> tuple[str, str, Callable[[int], str]]:
    """Lines of four five-digit groups, under a header with a meaningless number."""
    opening, lines = _entries(rng, ruled, DIGITS_A_GROUP * GROUPS_A_LINE, _digit_line)
    return opening, f"station {rng.randrange(100, 1000)}\n", lines


def mixed_document(rng: random.Random, ruled: bool) -> tuple[str, str, Callable[[int], str]]:
    """A market's ledger, one sale per line."""
    opening, lines = _entries(rng, ruled, 10, _ledger_line)
    return opening, "ledger of the market\n", lines


_FAMILY_MAKERS = {"easy": easy_document, "hard": hard_document, "mixed": mixed_document}


def _digit_line(entries: Sequence[int]) -> str:
    groups = [entries[i : i + DIGITS_A_GROUP] for i in range(0, len(entries), DIGITS_A_GROUP)]
    return " ".join("".join(map(str, group)) for group in groups) + "\n"


def _ledger_line(entries: Sequence[int]) -> str:
    name, goods = NAMES[entries[0]], GOODS[entries[5]]
    count, price = ("".join(map(str, part)) for part in (entries[1:5], entries[6:10]))
    return f"{name} sold {count} {goods} at {price}.\n"


def _entries(
    rng: random.Random, ruled: bool, width: int, write: Callable[[Sequence[int]], str]
) -> tuple[str, Callable[[int], str]]:
    """The first line, and a function that writes the next line at each call."""
    current = [rng.randrange(10) for _ in range(width)]
    opening = write(current)

    def line(number: int) -> str:
        nonlocal current
        if number:
            current = _next_line(current) if ruled else [rng.randrange(10) for _ in range(width)]
        return write(current)

    return opening, line


def _next_line(above: Sequence[int]) -> list[int]:
    before, line = above[-1], []
    for entry in above:
        before = follow(entry, before)
        line.append(before)
    return line
