"""`sglang-adaptive chat`: talk to a model in the terminal, and see how deep each answer was drafted."""
