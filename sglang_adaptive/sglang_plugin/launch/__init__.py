"""The launcher: whether a server should and can adapt, and whether its schedulers started with their hooks."""
