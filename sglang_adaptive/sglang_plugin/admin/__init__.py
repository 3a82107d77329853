"""The operator's interface: /server_info, /set_internal_state, and configuration changes while serving."""
