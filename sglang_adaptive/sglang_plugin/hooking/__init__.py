"""How SGLang is hooked: what a hook is, what is needed of SGLang, and what happens when our way fails.

Every other room imports this one; it imports no room.
"""
