"""Measurements against live servers; nothing here is part of the installed package."""
