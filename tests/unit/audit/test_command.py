"""An audit's questions, the operator's own prompts, and what the command refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from sglang_adaptive.audit.questions import KINDS, questions, read, shipped
from tests.refusals import refused


def test_every_prompt_is_asked_in_every_kind_and_a_block_has_all_kinds() -> None:
    prompts = shipped(3000)
    asked = questions(prompts, 64)
    assert {(one.prompt, one.kind) for one in asked} == {(name, kind) for name in prompts for kind in KINDS}
    assert len({one.name for one in asked}) == len(asked) == len(prompts) * len(KINDS)
    assert {one.kind for one in asked[:8]} == set(KINDS) and len({one.prompt for one in asked[:8]}) == 8


def test_long_prompts_fit_and_are_long() -> None:
    for longest in (400, 6000):
        found = [text for name, text in shipped(longest).items() if name.startswith("long")]
        assert len(set(found)) == 2 and all(0.8 * longest < len(text) <= longest for text in found)


def test_prompts_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_text('plain words\n\n{"text": "a"}\n{"input_ids": [1, 2]}\n')
    assert read(path) == {"line 1": "plain words", "line 3": "a", "line 4": [1, 2]}


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "mine.txt: cannot be read (No such file or directory)"),
        ("", "no prompts; expected one per line"),
        ('ok\n{"text": ', 'mine.txt:2: this is not JSON; expected {"text": "..."} or {"input_ids"'),
        ('{"prompt": "a"}', 'mine.txt:1: got the keys prompt; expected {"text"'),
        ('{"input_ids": [1.5]}', 'mine.txt:1: got [1.5]; expected {"text"'),
    ],
)
def test_a_broken_file_is_refused(
    content: str | None, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.txt"
    if content is not None:
        path.write_text(content)
    said = refused(capsys, ["audit", "--url", "http://127.0.0.1:1", "--prompts", str(path)])
    assert said.startswith("sglang-adaptive audit: error: --prompts") and told in said
