"""Runs any policy through simulated rounds and scores it against an oracle."""
