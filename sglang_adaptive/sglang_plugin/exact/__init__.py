"""Draws the token after every row of a verify with SGLang's own sampler; the drafts that match are accepted."""
