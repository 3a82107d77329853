"""Model classes that SGLang finds without importing all of its own, which takes a tenth of a server's start.

SGLang looks here first because the launcher names this package as its external model package, and goes through its
own models only for an architecture that is not here.
"""
