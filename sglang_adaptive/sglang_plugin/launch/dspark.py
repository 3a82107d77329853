"""The table from which a DSPARK server plans how many drafts to verify."""

from __future__ import annotations

import os
from typing import Any


def planner(server_args: Any) -> dict[str, str | None] | None:
    """Return ``mode``, ``table`` (its file) and ``problem`` (why SGLang cannot use it); None for other servers.

    SGLang ignores a table with one entry. A prefill server drafts nothing, so it gets None.
    """
    from sglang.srt.speculative.dspark_components.dspark_sps import is_uninitialized_sps_table, load_sps_table_from_path

    if (server_args.speculative_algorithm or "").upper() != "DSPARK" or server_args.disaggregation_mode == "prefill":
        return None
    table, problem = server_args.speculative_dspark_sps_table_path, None
    if table is not None:
        try:
            if is_uninitialized_sps_table(load_sps_table_from_path(table)):
                problem = "one number of tokens alone, which SGLang takes as no table"
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            problem = f"SGLang cannot read it ({(str(error).splitlines() or [type(error).__name__])[0]})"
    return {"mode": os.environ.get("SGLANG_RAGGED_VERIFY_MODE", "static"), "table": table, "problem": problem}
