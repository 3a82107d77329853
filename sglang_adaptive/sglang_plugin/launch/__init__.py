"""The launcher: whether a server should adapt and can, and whether its schedulers started with their hooks."""
