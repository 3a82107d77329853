"""monitoring/ and docs/monitoring.md match the package's reports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sglang_adaptive.runtime import alarms
from sglang_adaptive.runtime.counters import CAUSES, REGIONS
from sglang_adaptive.sglang_plugin.stages.audit_scheduler import VERDICTS
from sglang_adaptive.sglang_plugin.stages.reporting import METRICS, PREFIX, label_of

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "monitoring"
DASHBOARD = MONITORING / "grafana-dashboard.json"
PAGE = ROOT / "docs" / "monitoring.md"
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool (Debian: prometheus) is not installed"
)
SGLANG_S = {"sglang:spec_accept_length"}
"""SGLang's own metrics on the dashboard."""
WITHOUT_PANEL = {PREFIX + "expected_acceptance_ratio", PREFIX + "probes_total"}
"""Metrics that are not on the dashboard."""


LABELS = ("instance", *(metric.label for metric in METRICS if metric.label))


@pytest.fixture(scope="module")
def dashboard() -> dict[str, Any]:
    return json.loads(DASHBOARD.read_text())  # type: ignore[no-any-return]


def expressions(dashboard: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]


def test_dashboard_is_one_that_grafana_imports(dashboard: dict[str, Any]) -> None:
    variables = {variable["name"]: variable for variable in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    assert dashboard["schemaVersion"] >= 36 and dashboard["uid"] and "id" not in dashboard
    panels = dashboard["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) > 10
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        assert panel["type"] in ("stat", "timeseries") and panel["title"] and panel["description"]
        sources = [panel["datasource"], *(target["datasource"] for target in panel["targets"])]
        assert all(source == {"type": "prometheus", "uid": "${datasource}"} for source in sources)
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + column, place["y"] + row) for column in range(place["w"]) for row in range(place["h"])}
        assert not cells & taken, f"{panel['title']} lies over another panel"
        taken |= cells


def test_every_query_is_of_metrics_and_labels_that_exist(dashboard: dict[str, Any]) -> None:
    used = set()
    texts = [*expressions(dashboard), (MONITORING / "alerts.yml").read_text(), PAGE.read_text()]
    for text in texts:
        used |= set(re.findall(r"sglang:[a-z_]+", text))
        for label in re.findall(r"(?:by|without) \(([a-z_]+)\)", text):
            assert label in LABELS, label
    ours = {name for name in used if name.startswith(PREFIX)}
    known = {PREFIX + metric.name for metric in METRICS}
    assert ours == known, f"in METRICS or in monitoring/ and docs/monitoring.md, not in both: {ours ^ known}"
    assert used - ours <= {*SGLANG_S, "sglang:gen_throughput"}
    shown = set(re.findall(PREFIX + "[a-z_]+", " ".join(expressions(dashboard))))
    without_panel = ours - shown - WITHOUT_PANEL
    assert not without_panel, (
        f"add a Panel to scripts/dashboard.py and run make tables, or a name to WITHOUT_PANEL: {without_panel}"
    )


def test_every_label_value_that_is_named_exists() -> None:
    causes = {label_of(cause) for cause in CAUSES}
    rules = (MONITORING / "alerts.yml").read_text()
    assert set(re.findall(r'alarm{name="([^"]*)"', rules)) == set(alarms.NAMES), "each alarm has a rule"
    assert set(re.findall(r'cause="([^"]*)"', rules)) <= causes
    assert set(re.findall(r'verdict="([^"]*)"', rules)) <= set(VERDICTS)
    names = PAGE.read_text().split("- `name`:")[1].split("\n- ")[0]
    assert set(re.findall(r"`([a-z_]+)`", names)) == set(alarms.NAMES)
    section = PAGE.read_text().split("- `cause`:")[1].split("\n\n")[0]
    listed, rest = section.split("- `batch_region`:")
    regions, verdicts = rest.split("- `verdict`:")
    assert set(re.findall(r"`([a-z]+)`", verdicts)) == set(VERDICTS)
    assert set(re.findall(r"`([a-z_]+)`", listed)) == causes
    assert set(re.findall(r"`([\d+-]+)`", regions)) <= set(REGIONS)


def test_every_alert_is_explained_and_tested() -> None:
    alerts = re.findall(r"- alert: (\w+)", (MONITORING / "alerts.yml").read_text())
    page, tests = PAGE.read_text(), (MONITORING / "alerts.test.yml").read_text()
    assert len(alerts) == 4
    for alert in alerts:
        assert f"| `{alert}` |" in page
        assert re.search(rf"alertname: {alert}\n\s+exp_alerts", tests), f"{alert} is never raised in its tests"


@needs_promtool
@pytest.mark.parametrize(
    "command", [("check", "config", "prometheus.yml"), ("test", "rules", "alerts.test.yml")], ids=" ".join
)
def test_promtool_agrees(command: tuple[str, ...]) -> None:
    done = subprocess.run(["promtool", *command], cwd=MONITORING, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
def test_every_query_is_promql(dashboard: dict[str, Any], tmp_path: Path) -> None:
    queries = expressions(dashboard)
    queries += re.findall(r"^\| [^|]* \| `(.*)` \|$", PAGE.read_text().split("## Useful queries")[1], re.M)
    assert len(queries) > len(expressions(dashboard)) + 4
    for macro, value in (("$__rate_interval", "1m"), ("$model", ".*"), ("$instance", ".*")):
        queries = [query.replace(macro, value) for query in queries]
    rules = [{"record": f"query_{index}", "expr": query} for index, query in enumerate(queries)]
    file = tmp_path / "queries.yml"
    file.write_text(json.dumps({"groups": [{"name": "queries", "rules": rules}]}))  # JSON is YAML
    done = subprocess.run(["promtool", "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
