"""The stages of a round; `round.py` has their order."""
