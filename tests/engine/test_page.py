"""The live page in a real browser, on real servers: it shows the server's data."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sglang_adaptive.lab.cpu_engine.server import CpuServer
from sglang_adaptive.sglang_plugin.page.routes import PAGE
from tests.browser import FOUND, Browser
from tests.engine.fault import MESSAGE
from tests.engine.servers import ADMIN_KEY, LAUNCH_STEPS, TIERS
from tests.engine.workload import Case, adaptive, decoding

pytestmark = pytest.mark.skipif(FOUND is None, reason="no Chromium here; Debian's package is chromium")
PHONE = 390
HAS_DATA = "!byId('content').hidden"
KEPT_ROUNDS = "record.ranks[0].history.by_batch.reduce((count, one) => count + total(one.rounds), 0)"


@pytest.fixture(scope="module")
def running() -> Iterator[Browser]:
    """One browser for the module."""
    with Browser() as browser:
        yield browser


@pytest.fixture
def browser(running: Browser) -> Iterator[Browser]:
    """The browser, without problems before and after the test."""
    running.send("Page.navigate", url="about:blank")  # a server may be stopped now, and its page keeps polling
    running.until("location.href === 'about:blank'", "the page of the test before is gone")
    running.problems.clear()
    yield running
    running.cut_off(False)
    # On a busy machine a scheduler may not answer for five seconds; the page asks again.
    assert [problem for problem in running.problems if "503 (Service Unavailable)" not in problem] == []


def state_is(kind: str) -> str:
    return f"byId('state').dataset.state === '{kind}'"


def table(browser: Browser, name: str) -> list[list[str]]:
    """Return the text of a table's cells by row, with the headers."""
    script = f"[...document.querySelectorAll('#{name} tr')].map((row) => [...row.cells].map((c) => c.innerText.trim()))"
    found: list[list[str]] = browser.value(script)
    return found


def figures(browser: Browser) -> dict[str, str]:
    """Return the figures at the top of the page by name."""
    pairs = browser.value(
        "[...document.querySelectorAll('#figures div')].map((figure) => [...figure.children].map((c) => c.innerText))"
    )
    return dict(pairs)


def test_the_page_follows_text_that_changes(ema: CpuServer, browser: Browser, easy: list[str], hard: list[str]) -> None:
    browser.open(ema.url + PAGE)
    browser.until(state_is("idle"), "the page says that the server is idle")
    assert browser.text("headline") == "Idle"
    with decoding(ema, hard):
        browser.until("answer.ranks[0].current_steps <= 1", "hard text brings the depth down")
    with decoding(ema, easy):
        browser.until(f"answer.ranks[0].current_steps === {TIERS[-1]}", "easy text brings it up")
        browser.until(state_is("serving"), "the page says that the server decodes")
        assert browser.text("headline").endswith("a round")
        shown = figures(browser)
        assert float(shown["Tokens/s"]) > 0 and 1 <= float(shown["Accept length"]) <= TIERS[-1] + 1
    browser.until(state_is("idle"), "the page notices the end")

    found = adaptive(ema)
    assert figures(browser)["Switches"] == f"{found['switches']:,}"
    rows = table(browser, "switches-table")[1:]
    newest_first = found["recent_switches"][::-1]
    assert [row[1] for row in rows] == [f"{s['from_steps']} \u2192 {s['to_steps']}" for s in newest_first]
    assert "Recent acceptance favors 7 steps." in [row[3] for row in rows]
    for row, place in zip(table(browser, "acceptance-table")[1:], found["accepted_by_position"], strict=True):
        share = f"{100 * place['accepted'] / place['reached']:.6f}" if place["reached"] else "-"
        assert row[-1] == share or float(row[-1].removesuffix("%")) == pytest.approx(float(share), abs=0.51)
    assert [row[0] for row in table(browser, "slots-table")[1:]] == ["1 to 3", "from 4"]
    shares = "document.querySelectorAll('#depth-chart .share')"
    drawn = browser.value(f"[...{shares}].map((path) => path.getAttribute('d')).join()")
    assert drawn.count("M") >= 2, "the shares of rounds are drawn for each second"


def test_the_page_is_usable_without_a_mouse_or_eyes(ema: CpuServer, browser: Browser, easy: list[str]) -> None:
    browser.open(ema.url + PAGE)
    browser.until(HAS_DATA, "the page has data")
    tree = browser.accessibility_tree()
    roles = [role for role, _ in tree]
    assert {"banner", "main", "contentinfo", "status"} <= set(roles) and roles.count("table") >= 3
    headings = [name for role, name in tree if role == "heading"]
    assert {"Adaptive speculation", "Over time", "By batch size", "Acceptance by position"} <= set(headings)
    assert "Recent switches" in headings
    charts = [name for role, name in tree if role == "image"]
    subjects = [name.partition(" over the last")[0] for name in charts]
    assert subjects == ["Draft steps", "Tokens a second", "Accept length"]

    browser.value("document.activeElement.blur()")
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.id") == "pause"
    assert browser.value("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    browser.press(" ", 32, " ")
    browser.until("paused && !asking", "the last answer before the pause is there")
    assert browser.value("document.activeElement.getAttribute('aria-pressed')") == "true"
    stopped = browser.value("answer.time")
    with decoding(ema, easy):
        browser.value("new Promise((done) => setTimeout(done, 2500))")
    assert browser.value("answer.time") == stopped, "a paused page asks nothing"
    browser.press(" ", 32, " ")
    browser.until(f"answer.time > {stopped}", "it goes on")

    for name in ("1 min", "15 min", "1 h"):
        browser.press("Tab", 9)
        assert browser.value("document.activeElement.innerText") == name
    browser.press("Tab", 9)
    assert browser.value("document.activeElement.localName") == "summary"
    browser.press("Enter", 13, "\r")
    browser.until("document.querySelectorAll('#history-table tbody tr').length", "the table behind the charts opens")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_all_of_it(ema: CpuServer, browser: Browser, dark: bool) -> None:
    browser.open(ema.url + PAGE, width=PHONE, height=844, dark=dark)
    browser.until(HAS_DATA, "the page has data")
    assert browser.value("document.documentElement.scrollWidth") <= PHONE
    assert browser.value("document.querySelector('#rate-chart svg').getBoundingClientRect().right") <= PHONE
    colour = browser.value("getComputedStyle(document.body).backgroundColor")  # as rgb(19, 21, 24)
    assert (max(map(int, colour.strip("rgb()").split(","))) < 64) is dark


def test_a_server_that_is_gone_and_comes_back(ema: CpuServer, browser: Browser) -> None:
    browser.open(ema.url + PAGE)
    browser.until(state_is("idle"), "the server answers")
    browser.cut_off()
    browser.until(state_is("gone"), "the page notices")
    assert "has not answered since" in browser.text("sentence")
    browser.cut_off(False)
    browser.until(state_is("idle"), "the page notices that it is back")
    browser.problems.clear()  # the browser's own errors about the connection


def test_a_held_depth(ema: CpuServer, browser: Browser) -> None:
    browser.open(ema.url + PAGE)
    ema.force_steps(1)
    browser.until(state_is("held"), "the page says that the depth is held")
    assert browser.text("headline") == "Held at 1 step" and "operator" in browser.text("sentence")
    ema.force_steps(None)
    browser.until(state_is("idle"), "and that it was released")


def test_a_degraded_policy(faulty: CpuServer, browser: Browser, easy: list[str], hard: list[str]) -> None:
    while not adaptive(faulty)["degraded"]:
        for prompt in (easy[0], hard[0]):
            Case(prompt).whole(faulty)
    browser.open(faulty.url + PAGE)
    browser.until(state_is("degraded"), "the page says that the policy failed")
    assert MESSAGE in browser.text("sentence") and f"stays at {LAUNCH_STEPS} steps" in browser.text("sentence")


def test_rates_and_round_times(two_ranks: CpuServer, browser: Browser, easy: list[str]) -> None:
    browser.open(two_ranks.url + PAGE)
    with decoding(two_ranks, easy[:2], requests=2):
        browser.until(state_is("serving"), "the page says that the server decodes")
        browser.until("answer?.ranks[0].cost_table.source.flat().includes('measured')", "a round time is measured")
    browser.until(state_is("idle"), "the server is idle")
    found: dict[str, Any] = adaptive(two_ranks)
    *rows, own = table(browser, "rates-table")[1:]
    assert own[0] == "Own text", "no row of other texts: by default there is no memory"
    looked_up = found["lookup_rounds"]
    larger = looked_up["requests"].keys() - looked_up["seconds"].keys()  # looked up for more requests than there were
    assert larger and [int(row[0].split()[0]) for row in rows] == [n for n in found["tiers"] if str(n) not in larger]
    assert [int(row[0].split()[0]) for row in rows if "live" in row[0]] == [found["current_steps"]]
    cells = table(browser, "costs-table")
    assert [int(row[0]) for row in cells[1:]] == found["cost_table"]["batch_sizes"]
    for row, sources in zip(cells[1:], found["cost_table"]["source"], strict=True):
        for text, source in zip(row[1:], sources, strict=True):
            words = "guessed" if source == "prior" else source
            assert words in text and text.startswith("~") is (source == "interpolated")
    assert any("measured, " in text for row in cells for text in row)


def test_depths_that_a_later_configuration_leaves_out(ema: CpuServer, browser: Browser, easy: list[str]) -> None:
    before = adaptive(ema)["config"]
    try:
        ema.force_steps(TIERS[-1])
        Case(easy[0]).whole(ema)
        ema.configure({"throughput": {"candidate_steps": [1, 3]}})
        browser.open(ema.url + PAGE)
        browser.until("!byId('rates').hidden", "the page shows the new policy")
        for name in ("acceptance-table", "rates-table", "costs-table", "batches-table"):
            assert len({len(row) for row in table(browser, name)}) == 1, f"{name} has a row of another length"
        head, *rows = table(browser, "acceptance-table")
        assert head[2:] == ["Believed", "Last minute", "Since start"]
        assert [row[2] != "-" for row in rows] == [position < 3 for position in range(len(rows))]
        assert len(rows) == TIERS[-1] and all(row[-1].endswith("%") for row in rows[:3])
        assert [row[0].split()[0] for row in table(browser, "rates-table")[1:]] == ["1", "3"]
    finally:
        ema.force_steps(None)
        ema.configure(before)


def test_worth_and_an_hour_that_the_server_kept(two_ranks: CpuServer, browser: Browser, easy: list[str]) -> None:
    with decoding(two_ranks, easy[:2], requests=2):
        while adaptive(two_ranks)["speedup"] is None:
            pass  # each poll takes time on the server
    browser.open(two_ranks.url + PAGE)
    browser.until("record", "the page has what the server kept before it was opened")
    state, headline = browser.value("[answer.ranks[0], byId('worth-headline').innerText]")
    told = {one["steps"]: one for one in state["speedup"]["against"]}
    for one in (told[0], told[state["launch_steps"]]):
        assert f"{one['times']:.{2 if 2 * one['deviation'] < 0.095 else 1}f} times" in headline
    for name, span in (("1 h", 3600), ("1 min", 60), ("15 min", 900)):
        press = f"[...document.querySelectorAll('#ranges button')].find((b) => b.innerText === '{name}').click()"
        browser.value(press)
        browser.until(f"record.span === {span}", f"the page shows {name}")
        rows = sum(int(row[1].replace(",", "")) for row in table(browser, "batches-table")[1:])
        assert rows == browser.value(KEPT_ROUNDS) or span == 60  # the minute view moves on during the test
    everything = sum(adaptive(two_ranks)["rounds_by_tier"].values())
    browser.until(f"{KEPT_ROUNDS} === {everything}", "every round is in the history")


def test_a_browser_asks_for_the_key(tree: CpuServer, running: Browser) -> None:
    running.open(tree.url + PAGE)
    running.until(state_is("locked"), "the page asks for the key")
    assert "topk" not in running.value("document.documentElement.innerText") and running.value("answer") is None
    assert running.value("document.activeElement.id") == "key"
    running.write("wrong")
    running.press("Enter", 13, "\r")
    running.until("byId('sentence').innerText.includes('does not take')", "a wrong key is refused")
    assert running.value("[answer, sessionStorage.length]") == [None, 0]
    running.write(ADMIN_KEY)
    running.press("Enter", 13, "\r")
    running.until(state_is("inactive"), "the right key shows the state")
    assert "speculative_eagle_topk=4 (only topk=1 is supported)" in running.text("sentence")
    running.problems.clear()  # a refusal is an error to the browser
