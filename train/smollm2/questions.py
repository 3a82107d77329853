"""The questions: what the model asks in the user's place, and questions made from its own text."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from train.smollm2.clock import Clock
from train.smollm2.contexts import OPENINGS, Passage, about, back, into
from train.smollm2.held_out import HeldOut
from train.smollm2.plan import Plan
from train.smollm2.speaker import Speaker
from train.smollm2.store import Ids, Shards, read

KINDS = ("asked", "context", "translation")

FLOOR = 0.03
"""Tokens below this share of the likeliest token's probability are not drawn: the far tail is noise."""

PASSAGE_TEMPERATURE = 0.8
FEWEST_TOKENS = 4


def folders(out: Path) -> list[Shards]:
    """Return the questions' folders, by kind."""
    return [Shards(out / "questions" / kind) for kind in KINDS]


class Questions:
    """Fills the folders below *out*. Whole shards there are kept, so a call continues where another stopped."""

    def __init__(self, speaker: Speaker, held_out: HeldOut, out: Path, plan: Plan) -> None:
        self.speaker, self.held_out, self.plan = speaker, held_out, plan
        self.asked, self.context, self.translation = folders(out)
        self.passages = Shards(out / "passages")
        inside = speaker.tags.inside
        self._seen = {tuple(inside(question)) for question in self.asked.read().lists()}

    def write(self, clock: Clock) -> bool:
        """Write questions until there are enough or the time is up; return whether this stage is done."""
        parts = (
            (self.asked, self._ask, min(self.plan.asked, self.plan.passages)),
            (self.passages, self._write_passages, 1),
            (self.context, self._ask_about_passages, 1),
            (self.translation, self._ask_to_translate, 1),
            (self.asked, self._ask, self.plan.asked),
        )
        for shards, part, wanted in parts:
            while shards.documents() < wanted:
                # The time limits only how much the model asks itself: the other kinds come first and are short.
                if clock.leaving() or (part == self._ask and shards.count() and clock.over()):
                    return clock.over()
                before = shards.count()
                self.speaker.reseed(self.plan.seed + 1000 * before)
                part(random.Random(self.plan.seed + before))
                clock.keep()
                print(f"questions: {shards.folder.name} {shards.documents()}, {clock.used():.0f} s", flush=True)
                if shards.count() == before:
                    break
        return True

    def check(self) -> int:
        """Return the number of questions. Raises ValueError if there are none, or a held-out one is among them."""
        questions = read([self.asked, self.context, self.translation])
        if not len(questions):
            raise ValueError("no questions were written")
        self.held_out.check(self.speaker.texts(list(questions.lists())))
        return len(questions)

    def _ask(self, rng: random.Random) -> None:
        """One wave of questions, half of them from an opening on."""
        tags, tokens = self.speaker.tags, self.plan.question_tokens
        count = min(self.plan.wave, 2 * (self.plan.asked - self.asked.documents()))
        openings = self.speaker.ids([rng.choice(OPENINGS) if rng.random() < 0.5 else "" for _ in range(count)])
        said = self.speaker.say([[*tags.before, *opening] for opening in openings], tokens, 1.0, FLOOR)
        # A question that did not end in time is asked as it is: texts to summarize are cut off like that, too.
        found = [[*opening, *one.ids] for opening, one in zip(openings, said, strict=True)]
        new = [ids for ids in found if len(ids) >= FEWEST_TOKENS and not self._known(ids)]
        self._append(self.asked, new)

    def _known(self, ids: Ids) -> bool:
        key = tuple(ids)
        known = key in self._seen
        self._seen.add(key)
        return known

    def _write_passages(self, rng: random.Random) -> None:
        questions = list(self.asked.read().lists())[: self.plan.passages]
        said = self.speaker.say(questions, self.plan.answer_tokens, PASSAGE_TEMPERATURE, FLOOR)
        whole = [[*question, *one.ids] for question, one in zip(questions, said, strict=True)]
        self.passages.append(whole, [len(question) for question in questions])

    def _ask_about_passages(self, rng: random.Random) -> None:
        if passages := self._passages():
            self._append(self.context, self.speaker.ids(about(passages, self.plan.contexts, rng)))

    def _ask_to_translate(self, rng: random.Random) -> None:
        tags, wanted = self.speaker.tags, self.plan.translations // 2
        asked = into(self._passages(), wanted, rng)
        first = self.speaker.ids([one.request for one in asked])
        said = self.speaker.say([tags.around(ids) for ids in first], self.plan.question_tokens)
        second = self.speaker.ids(back(self.speaker.texts([one.ids for one in said]), asked, rng))
        self._append(self.translation, [*first, *second])

    def _passages(self) -> list[Passage]:
        found, tags = self.passages.read(), self.speaker.tags
        prompts = found.prompts.tolist()
        documents = list(found.lists())
        questions = [tags.inside(one[:prompt]) for one, prompt in zip(documents, prompts, strict=True)]
        answers = [one[prompt:] for one, prompt in zip(documents, prompts, strict=True)]
        texts = zip(self.speaker.texts(questions), self.speaker.texts(answers), strict=True)
        return [Passage(question, answer) for question, answer in texts if answer.strip()]

    def _append(self, shards: Shards, questions: Sequence[Ids]) -> None:
        """Keep the *questions* that are not too long and share no run with held-out ones."""
        fitting = [ids for ids in questions if 0 < len(ids) <= self.plan.context_tokens]
        texts = self.speaker.texts(fitting)
        kept = [ids for ids, text in zip(fitting, texts, strict=True) if not self.held_out.shares(text)]
        if kept:
            shards.append([self.speaker.tags.around(ids) for ids in kept])
