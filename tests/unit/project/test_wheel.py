"""The contents of the wheel, and what the installed package finds in it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from sglang_adaptive.policy.config import load_config
from sglang_adaptive.policy.profile import shipped_config

ROOT = Path(__file__).parents[3]


def tracked(folder: str) -> set[str]:
    listed = subprocess.run(["git", "ls-files", folder], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    return set(listed.stdout.split())


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(out)!r}))"
    built = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return out / built.stdout.split()[-1]


def test_every_tracked_file_of_package_and_configs_is_in_the_wheel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    wanted = tracked("sglang_adaptive") | {f"sglang_adaptive/{name}" for name in tracked("configs")}
    assert wanted and not wanted - names


def test_the_wheel_registers_plugins_and_command(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    name = next(name for name in archive.namelist() if name.endswith("entry_points.txt"))
    text = archive.read(name).decode()
    assert "[sglang.srt.plugins]" in text and "[console_scripts]" in text
    for line in text.splitlines():
        if "=" in line:
            path = line.split("=")[1].split(":")[0].strip().replace(".", "/")
            assert {f"{path}.py", f"{path}/__init__.py"} & set(archive.namelist()), f"{line}: no such module"


def test_an_unpacked_wheel_finds_its_presets(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path)
    code = "from sglang_adaptive.policy.config import load_config; print(load_config('aggressive').source)"
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout.strip() == str(tmp_path / "sglang_adaptive" / "configs" / "aggressive.json")


def test_a_checkout_finds_its_presets() -> None:
    assert load_config(shipped_config("conservative.json")).options.slots
    with pytest.raises(FileNotFoundError, match="nothing"):
        shipped_config("nothing.json")
