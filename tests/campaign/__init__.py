"""A campaign against the package: seeded and counted requests of every kind, operations during them, and routes.

``make campaign`` runs it; ``python -m tests.campaign --help`` lists its options.
"""
