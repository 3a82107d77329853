"""The SGLang release that this package supports, and the error when the installed one differs.

SGLang logs and swallows errors while it applies hooks. Without a check, a renamed function would turn adaptive
speculation off without a message.
"""

SUPPORTED = "sglang 0.5.23"


class ContractError(RuntimeError):
    """The installed SGLang lacks a function, parameter or field that this package relies on."""
