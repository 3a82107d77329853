"""`sglang-adaptive demo`: compares real servers on the CPU that write the same changing text."""
