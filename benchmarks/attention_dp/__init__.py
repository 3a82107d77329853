"""One depth for all ranks of attention DP: what a vote brings over other ways to agree, simulated."""
