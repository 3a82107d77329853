"""The start of a scheduler's controller: its policy, its cost profile, its warm-up; and what changes them later."""
