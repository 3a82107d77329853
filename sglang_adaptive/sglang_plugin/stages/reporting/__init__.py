"""Prometheus metrics, and the counters in a response's ``meta_info``."""
