"""The only modules that hook SGLang, one for each of its areas.

Their functions pass what SGLang is doing to the `Rounds`, or to the component that handles it. A new release of SGLang
changes only these modules. They import SGLang and the components inside their functions, so that listing the hooks
loads neither.
"""
