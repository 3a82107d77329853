"""Adaptive speculative decoding for SGLang: the draft depth is chosen before every round."""

__version__ = "0.1.0"
