"""The dashboard of monitoring/grafana-dashboard.json; ``make tables`` writes it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sglang_adaptive.sglang_plugin.stages.reporting import PREFIX

SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 24, 8
"""Grafana's grid is 24 columns wide."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of *width* columns; *queries* are pairs of an expression and the legend of its series."""

    title: str
    about: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 12
    stacked: str = "none"
    stepped: bool = False


def one(name: str) -> str:
    """Return the selector of a metric, ours without its prefix, on the chosen servers."""
    full = name if name.startswith("sglang:") else PREFIX + name
    return f'{full}{{model_name=~"$model", instance=~"$instance"}}'


def per_second(name: str, by: str) -> str:
    """Return the rate of a counter, summed over all labels but *by*."""
    return f"sum by ({by}) (rate({one(name)}[$__rate_interval]))"


def share(part: str, whole: str, by: str = "instance") -> str:
    """Return the rate of one counter over that of another."""
    return f"{per_second(part, by)} / {per_second(whole, by)}"


ACCEPTED = per_second("accepted_draft_tokens_total", "instance")

STATS = (
    Panel("Draft steps", "The current draft depth.", ((one("draft_steps"), "{{instance}}"),), "none", "stat", 6),
    Panel(
        "Expected speed-up",
        "Over no speculation, by the cost model; only with the throughput policy.",
        ((one("expected_speedup_ratio"), "{{instance}}"),),
        "none",
        "stat",
        6,
    ),
    Panel(
        "Degraded",
        "1: the policy failed and no longer runs, or the audit found a wrong token.",
        ((one("degraded"), "{{instance}}"),),
        "none",
        "stat",
        6,
    ),
    Panel(
        "Profile age",
        "Time since the server's round times were last saved.",
        ((one("profile_age_seconds"), "{{instance}}"),),
        "s",
        "stat",
        6,
    ),
)

GRAPHS = (
    Panel(
        "Draft steps over time",
        "The live depth at each scrape; changes between two scrapes are in the next panel.",
        ((one("draft_steps"), "{{instance}}"),),
        "none",
        stepped=True,
    ),
    Panel(
        "Rounds by draft steps",
        "Share of decode rounds at each depth.",
        ((per_second("rounds_total", "draft_steps"), "{{draft_steps}} steps"),),
        "none",
        stacked="percent",
    ),
    Panel(
        "Output tokens by draft steps",
        "Tokens per second from the rounds at each depth.",
        ((per_second("output_tokens_total", "draft_steps"), "{{draft_steps}} steps"),),
        "none",
        stacked="normal",
    ),
    Panel(
        "Draft tokens accepted and wasted",
        "Tokens per second; wasted drafts were rejected.",
        (
            (per_second("accepted_draft_tokens_total", "instance"), "accepted, {{instance}}"),
            (per_second("wasted_draft_tokens_total", "instance"), "wasted, {{instance}}"),
        ),
        "none",
        stacked="normal",
    ),
    Panel(
        "Acceptance by position",
        "Share of the drafts at each position that were accepted, if all drafts before them were.",
        (
            (
                share("position_accepted_tokens_total", "position_reached_tokens_total", "position"),
                "position {{position}}",
            ),
        ),
        "percentunit",
    ),
    Panel(
        "Accept length",
        "SGLang's own gauge: tokens per request and round.",
        ((one("sglang:spec_accept_length"), "{{instance}}"),),
        "none",
    ),
    Panel(
        "Expected and observed tokens per second",
        "By batch size region. Observed includes only timed rounds, so no prefills.",
        (
            (
                share("observed_tokens_total", "observed_seconds_total", "batch_region"),
                "observed, batch {{batch_region}}",
            ),
            (f"avg by (batch_region) ({one('expected_tokens_per_second')})", "expected, batch {{batch_region}}"),
        ),
        "none",
    ),
    Panel(
        "Audited requests",
        "Finished requests decoded again in the last ten minutes, by verdict. A wrong one ends speculation.",
        ((f"sum by (verdict) (increase({one('audits_total')}[10m]))", "{{verdict}}"),),
        "none",
    ),
    Panel(
        "Gain in the last hour",
        "Tokens per second over a fixed depth, by the cost model and accepted drafts; 0 steps: no speculation.",
        ((one("hour_speedup_ratio"), "over {{draft_steps}} steps, {{instance}}"),),
        "none",
    ),
    Panel(
        "Expected speed-up over no speculation",
        "Below 1, speculation costs throughput.",
        ((one("expected_speedup_ratio"), "{{instance}}"),),
        "none",
    ),
    Panel(
        "Alarms",
        "1 while the server has noticed this about itself; its page and its log have the sentence.",
        ((f"max by (instance, name) ({one('alarm')})", "{{name}}, {{instance}}"),),
        "none",
        stepped=True,
    ),
    Panel(
        "Switches per minute by cause",
        "Probes go to another depth for a few rounds and come back: two switches each.",
        ((f"60 * {per_second('switches_total', 'cause')}", "{{cause}}"),),
        "none",
        stacked="normal",
    ),
    Panel(
        "Time lost to probes",
        "Share of time that probes lost against the depth believed best.",
        ((per_second("probe_cost_seconds_total", "instance"), "{{instance}}"),),
        "percentunit",
    ),
)


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    return {
        "uid": "sglang-adaptive",
        "title": "SGLang adaptive speculation",
        "description": "What sglang-adaptive decides, and the effect.",
        "tags": ["sglang", "speculative decoding"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": _panels(),
    }


def _variables() -> list[dict[str, Any]]:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    return [
        {**source, "current": {}, "hide": 0, "includeAll": False, "multi": False, "options": [], "refresh": 1},
        _label_variable("model", "Model", "model_name", f"{PREFIX}draft_steps"),
        _label_variable("instance", "Server", "instance", f'{PREFIX}draft_steps{{model_name=~"$model"}}'),
    ]


def _label_variable(name: str, title: str, label: str, metric: str) -> dict[str, Any]:
    query = f"label_values({metric}, {label})"
    return {
        "name": name,
        "label": title,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "current": {},
        "hide": 0,
        "includeAll": True,
        "allValue": ".*",
        "multi": True,
        "options": [],
        "refresh": 2,
        "sort": 1,
    }


def _panels() -> list[dict[str, Any]]:
    placed, x, y, height = [], 0, 0, 4
    for number, panel in enumerate((*STATS, *GRAPHS), start=1):
        if x + panel.width > WIDTH:
            x, y = 0, y + height
        height = 4 if panel.kind == "stat" else HEIGHT
        placed.append(_panel(panel, number, {"x": x, "y": y, "w": panel.width, "h": height}))
        x += panel.width
    return placed


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": SOURCE, "expr": expression, "legendFormat": legend}
        for index, (expression, legend) in enumerate(panel.queries)
    ]
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": targets,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": _drawn(panel)}, "overrides": []},
        "options": _options(panel),
    }


def _drawn(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {}
    return {
        "drawStyle": "line",
        "lineInterpolation": "stepAfter" if panel.stepped else "linear",
        "fillOpacity": 0 if panel.stacked == "none" else 40,
        "showPoints": "never",
        "stacking": {"mode": panel.stacked, "group": "A"},
    }


def _options(panel: Panel) -> dict[str, Any]:
    if panel.kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "graphMode": "none"}
    legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
    return {"legend": legend, "tooltip": {"mode": "multi", "sort": "none"}}


def text() -> str:
    """Return the content of the file."""
    return json.dumps(dashboard(), indent=1) + "\n"
