"""GET /adaptive, a live page about the server's draft depth, and GET /adaptive.json, the data that it draws.

Nothing runs unless somebody asks: the scheduler counts what it counts anyway, the page takes differences between two
answers and keeps the history itself, and viewers at the same time share one look at the scheduler a second. A history
kept in the scheduler would be paid for in every round, also by servers whose page nobody opens.
"""
