from __future__ import annotations
import math
from sglang_adaptive.policy.throughput.acceptance.estimator import SATURATION, AcceptanceEstimator
def ratio_deviation(acceptance, first, second):
    return acceptance.ratio_deviation(first, second)
def learnable_deviation(acceptance, steps, seen, rounds, requests):
    if steps <= seen: return 0.0
    more = rounds * requests / (1.0 + requests / SATURATION)
    return acceptance.ratio_deviation(seen, steps) * math.sqrt(more / (more + acceptance.trials(steps) + acceptance.shrinkage))
