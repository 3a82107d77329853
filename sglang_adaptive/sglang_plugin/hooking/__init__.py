"""Hooks on SGLang's functions, the check of what they need of SGLang, and the fallback after an error.

Every other room imports this one; it imports no room.
"""
