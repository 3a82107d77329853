"""Drafts looked up in a request's own text: what they are, and what they would have got accepted."""
