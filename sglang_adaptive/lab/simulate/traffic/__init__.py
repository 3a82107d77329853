"""An operator's own traffic, from the rounds that a server wrote down, under every policy and depth."""
