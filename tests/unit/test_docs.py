"""What the documentation shows is what the package does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_adaptive.policy.config import check_config
from sglang_adaptive.policy.errors import ConfigError

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_the_table_of_keys_is_current() -> None:
    script = ROOT / "scripts" / "config_reference.py"
    done = subprocess.run([sys.executable, script, "--check"], check=False)
    assert done.returncode == 0, f"run {script.name}"


def test_every_example_configuration_is_accepted() -> None:
    blocks = [block for page in PAGES for block in re.findall(r"```json\n(.*?)```", page.read_text(), re.S)]
    examples = [example for example in map(json.loads, blocks) if any(key.isdigit() for key in example)]
    assert examples
    for example in examples:
        assert check_config(example, "example").slots


@pytest.mark.parametrize(
    "config",
    [{"8": {"candidate_steps": [1, True]}}, {"1": {"candidate_steps": [1]}, "up_histeresis": 0}],
)  # fmt: skip
def test_the_shown_refusals_are_real(config: dict[str, object]) -> None:
    with pytest.raises(ConfigError) as caught:
        check_config(config, "my.json")
    # The page leaves out the list of keys.
    line = re.sub(r"(?<=one of ).*(?= \(did you mean)", "...", str(caught.value))
    assert f"\n{line}\n" in (ROOT / "docs" / "configuration.md").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def test_the_page_of_commands_is_current() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "cli_reference.py", "--check"], check=False)
    assert done.returncode == 0, "run cli_reference.py"
