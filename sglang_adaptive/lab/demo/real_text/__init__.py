"""The demo with a real language model: readable questions, and the speed of the answers."""
