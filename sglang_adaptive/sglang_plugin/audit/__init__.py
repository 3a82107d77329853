"""Some finished greedy requests are decoded again at zero steps, and compared; off by default (docs/exactness.md)."""
