"""Model classes that SGLang finds without importing all of its own, which saves a tenth of a server's start.

The launcher names this package as SGLang's external model package. SGLang searches it first and imports its own models
only for other architectures.
"""
