"""SmolLM2's EAGLE-3 draft: the questions, the answers, the training and the measurement, on any device."""
