"""Round times as servers recorded them."""
