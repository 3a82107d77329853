"""CUDA graphs and attention backends of all steps: which, how fast, and with which shared buffers."""
