"""Cost profiles: round times by batch size and steps, what they hold for, and their JSON.

May import ``policy.errors`` and ``policy.config``.
"""
