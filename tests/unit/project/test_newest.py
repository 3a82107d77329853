"""What `make newest` shows of the hooked functions of another release, on one that does not exist."""

from __future__ import annotations

import pytest

from scripts.newest import differences
from sglang_adaptive.sglang_plugin import bodies
from tests import next_release
from tests.releases import of_the_newest

pytestmark = of_the_newest


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    new = next_release.write(tmp_path_factory.mktemp("next") / "site")
    text = "\n" + "\n".join(differences(bodies.installed(), new))
    return dict(part.split("\n", 1) for part in text.split("\n--- ")[1:])


SHOWN = {
    "speculative.eagle_worker_v2.EAGLEWorkerV2._build_trivial_verify_input (seams/worker.py: Stage.zero_step_input)":
        "# the same body: _build_zero_step_verify_input in sglang/srt/speculative/eagle_worker_v2.py",
    "speculative.eagle_utils.eagle_sample (seams/worker.py: Stage.sample)":
        "# the same name: in sglang/srt/speculative/eagle_sampling.py",
    "managers.scheduler.Scheduler._forward_isolation (seams/scheduling.py: Stage.isolate)":
        "+def _forward_isolation(self, batch: ScheduleBatch, *, overlap: bool, forward_ct: int):",
}  # fmt: skip


@pytest.mark.parametrize("named", SHOWN)
def test_a_change_is_shown_with_our_place(named: str, told: dict[str, str]) -> None:
    assert SHOWN[named] in told[f"sglang.srt.{named}"].splitlines()


def test_every_change_is_shown(told: dict[str, str]) -> None:
    named = [line.partition(")")[0] + ")" for change in next_release.CHANGES for line in change.named]
    assert set(named) <= told.keys()
    assert not [one for one in told if "resolve_once" in one], "what has not changed is not shown"
