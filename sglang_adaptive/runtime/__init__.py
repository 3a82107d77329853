"""Which depth is live, and when it may change: pure Python, no torch, no sglang."""
