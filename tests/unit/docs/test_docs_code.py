"""Code blocks in the documentation are valid, without a network or a server; the example policy plays."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from sglang_adaptive.cli import COMMANDS
from sglang_adaptive.policy.config import load_config, top_level_keys

ROOT = Path(__file__).parents[3]
OUTSIDE_DOCS = ("README.md", "CHANGELOG.md", "SECURITY.md", "patches/README.md", "train/README.md")
PAGES = [*map(ROOT.joinpath, OUTSIDE_DOCS), *sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("benchmarks/**/*.md")])]


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(language: str) -> Iterator[Block]:
    for page in PAGES:
        name, text = page.relative_to(ROOT).as_posix(), page.read_text()
        for found in re.finditer(r"^( *)```(\w*)\n(.*?)^\1```$", text, re.M | re.S):
            if found[2] == language:
                content = re.sub(rf"^{found[1]}", "", found[3], flags=re.M)
                yield Block(name, text.count("\n", 0, found.start()) + 1, language, content)


@pytest.mark.parametrize("block", list(blocks("json")), ids=str)
def test_json_is_json_and_configurations_are_accepted(block: Block, tmp_path: Path) -> None:
    content = json.loads(block.text)
    if isinstance(content, dict) and any(key in top_level_keys() or key.isdigit() for key in content):
        path = tmp_path / "adaptive.json"
        path.write_text(block.text)
        assert load_config(path).candidate_steps


def test_blocks_of_every_kind_are_found() -> None:
    assert all(list(blocks(language)) for language in ("json", "python", "bash"))


@pytest.mark.parametrize("block", list(blocks("python")), ids=str)
def test_python_compiles(block: Block) -> None:
    compile(block.text, str(block), "exec")


def lines(block: Block) -> Iterator[list[str]]:
    for line in block.text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Za-z_]\w*=.*", words[0]):
            words.pop(0)
        if words:
            yield [words[0].removeprefix(".venv/bin/"), *words[1:]]


SHELL = [(block, words) for block in blocks("bash") for words in lines(block)]
OF_THE_SYSTEM = {"pip", "git", "curl", "kill", ".", "cd", "export", "patch", "prometheus", ".ci/run", "sglang"}


@pytest.mark.parametrize(("block", "words"), SHELL, ids=[" ".join(words) for _, words in SHELL])
def test_commands_exist(block: Block, words: list[str]) -> None:
    for flag, name in pairwise(words):
        if flag == "--speculative-adaptive-config":
            assert load_config(name).candidate_steps
    if words[0] == "sglang-adaptive":
        check_our_command(words[1:])
    elif words[0] == "make":
        targets = re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M)
        assert {word for word in words[1:] if "=" not in word} <= {*targets}
    elif words[0].startswith("python"):
        check_python(words[1:])
    else:
        assert words[0] in OF_THE_SYSTEM, f"{block}: what is {words[0]}?"


def check_our_command(words: list[str]) -> None:
    name, *arguments = words
    if name.startswith("--"):
        return
    assert name in COMMANDS
    if name == "serve-cpu":
        return  # SGLang's own arguments
    options = import_module(COMMANDS[name][0]).parser()._option_string_actions
    for word in takewhile(lambda word: word != "--", arguments):
        if word.startswith("--"):
            assert word.partition("=")[0] in options, f"{name} has no {word}"
        if word.startswith(("configs/", "benchmarks/")) and not any(mark in word for mark in "*["):
            assert (ROOT / word).exists()


def check_python(words: list[str]) -> None:
    if words[0] == "-m":
        # SGLang's modules take seconds to import; tests/engine checks that the launcher exists.
        assert words[1].startswith("sglang.") or find_spec(words[1]), f"no module {words[1]}"
    elif words[0] != "-c":
        assert (ROOT / words[0]).is_file()


EXAMPLES = ROOT / "docs" / "examples"


def test_the_example_policy_has_30_lines() -> None:
    body = ast.parse((EXAMPLES / "token_budget.py").read_text()).body[-1]
    assert isinstance(body, ast.ClassDef) and body.end_lineno is not None
    assert body.end_lineno - body.lineno < 30


def test_the_example_policy_beats_every_fixed_depth_of_its_page() -> None:
    played = subprocess.run([sys.executable, EXAMPLES / "play.py"], capture_output=True, text=True, check=True)
    shares = {name: float(mean) for name, mean in map(str.split, played.stdout.splitlines())}
    assert shares["token_budget"] > max(shares["static-0"], shares["static-3"])
