"""Rounds whose drafts are looked up in each request's own text."""
