"""``sglang-adaptive doctor``: checks whether adaptive speculation can run on this machine, and with a launch line."""
