"""Drive any policy through simulated rounds and score it against an oracle."""
