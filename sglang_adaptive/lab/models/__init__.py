"""`sglang-adaptive models`: a real language model and its draft as folders in the user's cache."""
