"""``sglang-adaptive watch``: shows a live server's steps, rates and acceptance at intervals."""
