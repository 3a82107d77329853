"""``sglang-adaptive completion``: what a shell offers on TAB, made from the parsers of the commands."""
