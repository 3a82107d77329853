"""The served page: one document, nothing external, and no gap in its words."""

from __future__ import annotations

import base64
import hashlib
import re

from sglang_adaptive.policy.throughput.cost import INTERPOLATED, MEASURED, PRIOR, PROFILE
from sglang_adaptive.runtime.counters import CAUSES
from sglang_adaptive.sglang_plugin.page.routes import PARTS, content_security_policy, document

PAGE = document()


def test_nothing_is_fetched_from_outside() -> None:
    addresses = re.findall(r"https?://[^\s\"'`]+", PAGE)
    assert set(addresses) == {"http://www.w3.org/2000/svg"}  # a name, not an address
    assert set(re.findall(r"(?:src|href)=\"([^\"]*)\"", PAGE)) == {"data:,", "adaptive.json"}
    assert set(re.findall(r"fetch\(([^,)]*)", PAGE)) == {'"adaptive.json"', "`adaptive/history.json?span=${asked}`"}
    assert not re.search(r"@import|url\(|innerHTML|insertAdjacentHTML|document\.write|eval\(", PAGE)


def test_the_policy_allows_this_style_and_script_alone() -> None:
    policy = content_security_policy(PAGE)
    for element in ("style", "script"):
        text = PAGE.partition(f"<{element}>")[2].partition(f"</{element}>")[0]
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{element}-src 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy and "unsafe" not in policy


def test_every_cause_and_source_has_words() -> None:
    for cause in CAUSES:
        assert re.search(rf'^    "?{cause}"?: ', (PARTS / "words.js").read_text(), re.M), cause
    for source in (MEASURED, PROFILE, INTERPOLATED, PRIOR):
        assert f"  {source}: {{ mark" in (PARTS / "words.js").read_text()
        assert f".{source}" in (PARTS / "page.css").read_text()
