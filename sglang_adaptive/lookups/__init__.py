"""Drafts looked up in a request's own text: the lookup, and how many of them would have been accepted."""
