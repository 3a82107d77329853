"""The start of a scheduler's controller: policy, cost profile and warm-up, and what changes them later."""
