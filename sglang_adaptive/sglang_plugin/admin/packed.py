"""Objects in SGLang's message of /set_internal_state, which has numbers under names: one is packed into a name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any


def pack(key: str, value: Any) -> dict[str, int]:
    """Return the ``server_args`` of a message with *value*, a dataclass, for the handler of *key*."""
    return {f"{key} {json.dumps(asdict(value))}": 1}


def unpack(recv_req: Any, kinds: Mapping[str, type]) -> None:
    """Put what is packed in SGLang's message under its key, as the dataclass of *kinds* for that key.

    A name that carries nothing of the kind stays, and SGLang refuses it.
    """
    for name in list(recv_req.server_args):
        key, _, text = name.partition(" ")
        if key in kinds:
            with suppress(ValueError, TypeError, RecursionError):
                value = kinds[key](**json.loads(text))
                del recv_req.server_args[name]
                recv_req.server_args[key] = value
