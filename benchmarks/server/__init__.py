"""Policies compared on a real server, with acceptance that is simulated where models have dummy weights."""
