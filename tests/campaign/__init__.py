"""A campaign against the package: requests of every kind, operations meanwhile, and doors, seeded and counted.

``make campaign`` runs it; ``python -m tests.campaign --help`` lists its options.
"""
