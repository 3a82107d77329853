"""Record how many drafts of an EAGLE-3 chain a target accepts at every position of its outputs."""
