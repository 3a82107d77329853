"""Replay recorded acceptance: policies meet what drafts did on real text, position by position."""
