"""The reasons for static speculation in docs/compatibility.md are those that the code gives, here and in SGLang."""

from __future__ import annotations

import ast
import re
from importlib.util import find_spec
from pathlib import Path

from tests.messages import GAP, messages

PAGE = " ".join((Path(__file__).parents[3] / "docs" / "compatibility.md").read_text().split())


def test_our_reasons() -> None:
    files = ("launch/activation.py", "repairs/hybrids.py", "workers/choice.py")
    for file in files:
        found = {message.text for message in messages() if message.where.startswith(f"sglang_plugin/{file}")}
        reasons = {text for text in found if not text.startswith(("adaptive speculation", "sglang-adaptive", "got "))}
        assert len(reasons) >= 2, file
        assert not [reason for reason in reasons if f"`{reason}`" not in PAGE]


def test_reasons_of_sglang() -> None:
    package = find_spec("sglang")
    assert package is not None and package.submodule_search_locations
    file = Path(package.submodule_search_locations[0], "srt", "speculative", "adaptive_spec_params.py")
    functions = [node for node in ast.parse(file.read_text()).body if isinstance(node, ast.FunctionDef)]
    asked = next(function for function in functions if function.name == "adaptive_unsupported_reason")
    returned = [node.value for node in ast.walk(asked) if isinstance(node, ast.Return)]
    reasons = [text(value) for value in returned if value is not None and text(value)]
    assert len(reasons) == 7
    assert not [reason for reason in reasons if f"`{reason}`" not in PAGE]


def text(value: ast.expr) -> str:
    if isinstance(value, ast.JoinedStr):
        parts = [str(part.value) if isinstance(part, ast.Constant) else GAP for part in value.values]
        return re.sub(r"\s+", " ", "".join(parts))
    return value.value if isinstance(value, ast.Constant) and isinstance(value.value, str) else ""
