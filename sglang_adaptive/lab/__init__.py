"""Tools for trials, teaching and measurements. Serving does not need them; nothing outside this folder imports it."""
