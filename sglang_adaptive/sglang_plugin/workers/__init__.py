"""Adaptive subclasses of workers that SGLang runs with fixed steps, one file each; ``choice`` selects one."""
