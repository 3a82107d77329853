"""The operator's interface: /server_info, /set_internal_state, and changes of the configuration while serving."""
