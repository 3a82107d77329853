"""Which finished texts are kept, and what a request searches of them."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from sglang_adaptive.policy.config import texts_in
from sglang_adaptive.policy.errors import ConfigError
from sglang_adaptive.sglang_plugin.stages.lookups.memory import END, PIECE, SOURCES, Ints, Memory, marks_of

CAPACITY = 2000


class Ring:
    def __init__(self, capacity: int = CAPACITY, searched: int = 10_000, file: tuple[Ints, ...] = ()) -> None:
        self.memory = Memory(capacity, 500, searched, file)
        self.tokens = np.zeros(capacity, np.int64)

    def finish(self, prompt: Ints, output: Ints, key: str = "") -> None:
        self.memory.keep(key, np.append(prompt, output), len(prompt))
        self.arrive()

    def arrive(self) -> None:
        for begin, new in self.memory.arrivals():
            assert begin + len(new) <= len(self.tokens)
            self.tokens[begin : begin + len(new)] = new

    def found(self, prompt: Ints, key: str = "") -> list[list[int]]:
        """Return the texts that a request with *prompt* searches, best first: in a range the latest match counts."""
        texts: list[list[int]] = []
        for begin, end in self.memory.sources(key, marks_of(key, prompt)):
            part: list[int] = self.tokens[begin:end].tolist()
            whole = []
            while END in part:
                whole.append(part[: part.index(END)])
                part = part[part.index(END) + 1 :]
            assert not part, "a range ends with a text"
            texts += reversed(whole)
        return texts


def tokens(begin: int, size: int) -> Ints:
    return np.arange(begin, begin + size)


def test_siblings_come_first_then_texts_that_begin_alike_then_the_newest() -> None:
    ring = Ring()
    prompt = tokens(0, 2 * PIECE + 5)
    alike = np.append(prompt[: PIECE + 3], tokens(500, 90))
    ring.finish(prompt, tokens(1000, 20))
    ring.finish(alike, tokens(2000, 20))
    ring.finish(tokens(300, 30), tokens(3000, 20))
    first, second, third, *_ = ring.found(prompt)
    assert first == [*prompt, *tokens(1000, 20)]
    assert second[-20:] == tokens(2000, 20).tolist()
    assert second[:PIECE] == alike[:PIECE].tolist(), "it may match where it leaves what is known"
    assert third[-20:] == tokens(3000, 20).tolist()


def test_what_is_kept_already_is_not_kept_again() -> None:
    ring = Ring()
    prompt = tokens(0, 5 * PIECE)
    ring.finish(prompt, tokens(1000, 40))
    ring.finish(prompt, tokens(2000, 40))
    newest, _ = ring.found(prompt)[:2]
    assert newest == [*prompt[4 * PIECE :], *tokens(2000, 40)]


def test_a_flush_forgets_all_but_the_file() -> None:
    file = tokens(9000, 50)
    ring = Ring(file=(file,))
    ring.finish(tokens(0, 70), tokens(100, 9))
    ring.memory.keep("", tokens(200, 70), 60)
    before = ring.memory.version
    ring.memory.forget()
    ring.arrive()
    assert ring.memory.version > before
    assert ring.found(tokens(0, 70)) == ring.found(tokens(0, 70), "another") == [file.tolist()]


def test_the_newest_texts_are_whole_whatever_came_before() -> None:
    """Texts of many lengths and keys wrap around the ring; ranges always hold texts of the request's key alone."""
    draw, ring = random.Random(5), Ring(file=(tokens(50_000, 40),))
    kept: dict[str, list[list[int]]] = {"a": [], "b": []}
    for number in range(300):
        key = draw.choice("aab")
        text = np.array([draw.randrange(10_000) + 10_000 * (key == "b") for _ in range(draw.randrange(2, 400))])
        ring.memory.keep(key, text, 1)
        kept[key].append(text.tolist())
        assert ring.memory.has(marks_of(key, text[:1])[-1])
        if draw.random() < 0.5:  # no round reads it yet
            continue
        ring.arrive()
        found = ring.found(text[:1], key)
        assert kept[key][-1] in found, number
        assert all(one in kept[key] or one[0] >= 50_000 for one in found), number
        assert len(ring.memory.sources(key, marks_of(key, text[:1]))) <= SOURCES


def test_a_search_is_bounded() -> None:
    ring = Ring(searched=300)
    for number in range(6):
        ring.finish(tokens(100 * number, 70), tokens(5000, 20))
    ranges = ring.memory.sources("", marks_of("", tokens(0, 70)))
    assert 200 < sum(end - begin for begin, end in ranges) <= 300
    shared = ring.memory.sources("", marks_of("", tokens(0, 70)), 3)
    assert 50 < sum(end - begin for begin, end in shared) <= 100


def test_texts_that_no_round_reads_do_not_pile_up() -> None:
    memory = Memory(CAPACITY, 500, 300)
    for number in range(50):
        memory.keep("", tokens(number, 400), 10)
    assert CAPACITY / 2 < sum(len(text) for _, text in memory._unwritten) <= CAPACITY


def test_a_file_has_a_text_a_line(tmp_path: Path) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text('"one\\ntext"\n[3, 4, 5]\n')
    assert texts_in(str(path)) == ["one\ntext", [3, 4, 5]]


@pytest.mark.parametrize("line", ["text", "[]", '""', "[1, -2]", "[true]", '{"text": "a"}', ""])
def test_another_line_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "texts.jsonl"
    path.write_text(f'"fine"\n{line}\n')
    with pytest.raises(ConfigError, match=r"line 2: got .* expected a JSON string or list of token ids a line"):
        texts_in(str(path))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl"):
        texts_in(str(tmp_path / "none.jsonl"))
