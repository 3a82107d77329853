"""The SGLang release that this package was written against, and the error when the installed one differs.

SGLang logs and swallows an error while it applies hooks. Without a check, a function that moved would turn adaptive
speculation off and nobody would know.
"""

SUPPORTED = "sglang 0.5.23"


class ContractError(RuntimeError):
    """The installed SGLang lacks a function, parameter or field that this package relies on."""
