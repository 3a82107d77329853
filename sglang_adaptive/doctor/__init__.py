"""``sglang-adaptive doctor``: is everything here that adaptive speculation needs, and would it run?"""
