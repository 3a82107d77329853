"""Model classes that SGLang finds without importing all of its own, which saves a tenth of a server's start.

The launcher names this package as SGLang's external model package, which SGLang searches first. It imports its own
models only for an architecture that is not here.
"""
