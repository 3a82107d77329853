"""`sglang-adaptive chat`: chat with a model in the terminal, with the steps of each answer."""
