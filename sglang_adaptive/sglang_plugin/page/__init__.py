"""GET /adaptive, a live page about the server's steps, and GET /adaptive.json, its data.

The page computes current figures from differences between two answers. Its charts come from GET /adaptive/history.json:
an hour of rounds that every scheduler keeps (``runtime.history``). All viewers together cause one scheduler request per
second.
"""
