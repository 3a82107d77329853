"""Replays recorded acceptance: policies get the drafts' results on real text, position by position."""
