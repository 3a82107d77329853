"""Drafts looked up in a request's own text: the definition, which kernels and recordings follow."""
