"""Skips work that SGLang repeats in every round, with bit-identical results."""
