"""The tokens that the next layer of a multi-layer draft reads."""

from __future__ import annotations

import torch
from torch import Tensor


def rotate_input_ids_cpu(
    input_ids: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    topk_index: Tensor,
    select_index: Tensor | None,
) -> None:
    """Shift each request's tokens left by one, and write its draft behind its last token.

    Request i has ``extend_seq_lens[i]`` entries of *input_ids* from ``extend_start_loc[i]`` on. Its last token is at
    ``select_index[i]``, without *select_index* in its last entry. *topk_index* has one draft a request.
    """
    lengths = extend_seq_lens.long()
    last = extend_start_loc.long() + lengths - 1
    shifted = torch.roll(input_ids, -1)
    shifted[last] = input_ids[last]
    input_ids.copy_(shifted)
    where = last if select_index is None else select_index.long()
    input_ids[where] = topk_index.flatten().to(input_ids.dtype)
