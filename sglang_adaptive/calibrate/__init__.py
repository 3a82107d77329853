"""Measures round times on a live server (``calibrate``), and explains its steps (``explain``)."""
