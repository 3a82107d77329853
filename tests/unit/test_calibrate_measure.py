"""Which depths calibration measures at a batch size."""

from __future__ import annotations

from sglang_adaptive.calibrate.measure import depths


def state(**graphs: list[int] | None) -> dict[str, object]:
    tiers = [{"steps": int(name[1:]), "graph_batch_sizes": sizes} for name, sizes in graphs.items()]
    return {"tiers": [tier["steps"] for tier in tiers], "startup": {"tiers": tiers}}


def test_a_depth_is_measured_where_it_has_the_graph_that_the_batch_runs_in() -> None:
    pruned = state(_0=[1, 2, 4, 8], _3=[1, 2, 4, 8], _7=[1, 2], _9=[])
    assert [depths(pruned, size) for size in (1, 2, 3, 8)] == [[0, 3, 7], [0, 3, 7], [0, 3], [0, 3]]
    assert depths(pruned, 9) == [0, 3, 7, 9]  # beyond the largest graph all run without


def test_without_graphs_every_depth_is_measured() -> None:
    assert depths(state(_0=None, _3=None), 4) == [0, 3]
