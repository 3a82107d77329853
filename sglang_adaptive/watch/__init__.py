"""``sglang-adaptive watch``: what a live server's speculation does, reading after reading."""
