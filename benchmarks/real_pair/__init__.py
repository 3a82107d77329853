"""A real pair of some 85M parameters, trained on a GPU on text found there, and what a server makes of it."""
