"""Expected tokens of a round by steps, learnt from accepted drafts.

May import nothing else of ``policy``.
"""
