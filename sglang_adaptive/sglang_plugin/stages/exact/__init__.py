"""Draws the token after every row of a verify with SGLang's own sampler and accepts the drafts that match."""
