"""Measuring a live server, and asking it why it does what it does."""
