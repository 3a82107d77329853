"""The short form of the campaign on servers: a small unit of requests during all of an operator's actions."""

from __future__ import annotations

from pathlib import Path

from tests.campaign.short import require_nothing_lost
from tests.campaign.stages import OPERATIONS


def test_nothing_is_lost(tmp_path: Path) -> None:
    require_nothing_lost(OPERATIONS, tmp_path)
