"""The CPU engine's forms of SGLang's layers give the same bits as SGLang's own."""

from __future__ import annotations

from tests import checks

SCRIPT = """
import itertools, json
import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.rotary_embedding.base import RotaryEmbedding
from sglang_adaptive.lab.cpu_engine import replaced

torch.manual_seed(0)
asked = {"norm": 0, "rotate": 0}
differ = []

def own(name, method):
    def original(*arguments, **more):
        asked[name] += 1
        return method(*arguments, **more)
    return original

def compare(name, method, ours, layer, *arguments):
    wanted, found = method(layer, *arguments), ours(own(name, method), layer, *arguments)
    pairs = zip(wanted, found) if isinstance(wanted, tuple) else [(wanted, found)]
    if not all(torch.equal(one, other) and one.dtype == other.dtype for one, other in pairs):
        differ.append([name, str(layer), [str(getattr(each, "shape", each)) for each in arguments]])

with torch.no_grad():
    for tokens, hidden, dtype in itertools.product((1, 8, 65), (128, 576), (torch.float32, torch.bfloat16)):
        for more in ({}, {"var_hidden_size": hidden // 2}, {"cast_x_before_out_mul": True}, {"fp32_residual": True}):
            layer = RMSNorm(hidden, eps=1e-5, **more)
            layer.weight.data.normal_()
            x, residual = torch.randn(2, tokens, hidden).to(dtype)
            for given in ((x,), (x, residual), (x, residual, None), (x, residual, x)):
                compare("norm", RMSNorm.forward_native, replaced.norm, layer, *given)
    for tokens, size, turned, near in itertools.product((1, 8, 65), (32, 64), (1, 2), (True, False)):
        layer = RotaryEmbedding(size, size // turned, 512, 10000, near, torch.float32)
        qkv = torch.randn(tokens, 7 * size)
        query, key, _ = qkv.split([4 * size, 2 * size, size], dim=-1)
        positions = torch.randint(512, (tokens,))
        compare("rotate", RotaryEmbedding.forward_native, replaced.rotate, layer, positions, query, key)
    nothing = replaced.norm(None, RMSNorm(128), torch.empty(0, 128)), *replaced.rotate(
        None, RotaryEmbedding(32, 32, 512, 10000, True, torch.float32), positions[:0], query[:0, :128], key[:0, :64]
    )
print(json.dumps({"differ": differ, "asked": asked, "nothing": [part.shape for part in nothing]}))
"""


def test_results_are_the_same_bits() -> None:
    """Covers what a plain Llama does and what falls back to SGLang's own form."""
    found = checks.scripted(SCRIPT)
    assert found["differ"] == []
    # Of 12 sizes of 4 norms with 4 inputs each, ours handles 6 sizes, one norm and 3 inputs; of 24 rotations, a
    # quarter.
    assert found["asked"] == {"norm": 12 * 16 - 6 * 3, "rotate": 24 - 6}
    assert found["nothing"] == [[0, 128], [0, 128], [0, 64]], "of no tokens"
