"""``sglang-adaptive validate``: the server's own check of a configuration, and what the configuration will do."""
