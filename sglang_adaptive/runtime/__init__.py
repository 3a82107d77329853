"""Applies the steps that a policy chooses, and counts and times rounds; imports neither torch nor sglang."""
