"""Repairs of defects of SGLang that adaptive speculation meets; patches/ has the same as patches."""
