"""Real text on live servers: SmolLM2 with its draft, and an 8B shape that replays recorded acceptance."""
