"""Rounds of zero steps that cost about a plain decode, after which drafting can resume."""
