"""What SGLang's NGRAM worker imports from the compiled kernel package."""

from sglang_adaptive.lab.cpu_engine.kernels.tree import reconstruct_indices_from_tree_mask

__all__ = ["reconstruct_indices_from_tree_mask"]
