"""Decision making: pure Python, no torch, no sglang, no clock, no I/O on the decision path."""
