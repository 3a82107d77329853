"""``sglang-adaptive report``: benchmark results as one HTML page or one Markdown page."""
