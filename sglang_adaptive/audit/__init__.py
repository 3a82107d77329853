"""Asks a live server the same at every depth, and tells equal texts, ties and wrong ones apart (``audit``)."""
