"""The stages of a round; `rounds.py` has their order."""
