"""Applies the policy's steps, and counts and times rounds; imports neither torch nor sglang."""
