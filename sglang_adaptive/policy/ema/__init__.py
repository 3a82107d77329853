"""SGLang's documented policy of moving averages.

May import the modules at the root of ``policy`` and ``policy.config``.
"""
