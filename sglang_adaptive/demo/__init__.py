"""`sglang-adaptive demo`: real servers on the CPU, the same changing text for each, and what came of it."""
