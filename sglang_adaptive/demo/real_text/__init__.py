"""The demo with a real language model: questions that a person can read, and the speed of their answers."""
