"""Asks a live server the same at every depth, and separates equal texts, ties and wrong ones (``audit``)."""
