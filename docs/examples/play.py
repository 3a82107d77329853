"""Scores the example policy on simulated rounds: ``python docs/examples/play.py``."""

from __future__ import annotations

from token_budget import TokenBudgetOptions, TokenBudgetPolicy

from sglang_adaptive.lab.simulate.contenders import Launch, contenders
from sglang_adaptive.lab.simulate.cost import load_cost
from sglang_adaptive.lab.simulate.engine import play
from sglang_adaptive.lab.simulate.scenes import SUITES, Setting
from sglang_adaptive.lab.simulate.score import share

TRACES, ROUNDS, BUDGET = 4, 400, 256


def make(launch: Launch) -> TokenBudgetPolicy:
    """Return a fresh policy, as ``sglang-adaptive simulate --policy play:make`` asks for one."""
    return TokenBudgetPolicy(3, TokenBudgetOptions(launch.ladder, BUDGET))


def shares() -> dict[str, float]:
    """Return each policy's mean share of the oracle's throughput where text and load both change."""
    setting = Setting(load_cost(None)[1], rounds=ROUNDS, traces=TRACES)
    known = contenders(setting.ladder)
    makers = {name: known[name].make for name in ("static-0", "static-3", "ema", "throughput")}
    makers["token_budget"] = make
    totals = dict.fromkeys(makers, 0.0)
    for trace in SUITES["both"].traces(setting):
        for name, maker in makers.items():
            totals[name] += share(trace, play(maker(trace), trace)) / TRACES
    return totals


if __name__ == "__main__":
    for name, mean in sorted(shares().items(), key=lambda item: item[1]):
        print(f"{name:<14}{mean:.3f}")
