"""The only modules that hook SGLang, one for each of its areas.

What they declare passes what SGLang is doing to the `Rounds`, or to the component that handles it. A new release of
SGLang changes only these modules. SGLang, and components that import it, are imported inside functions, so that listing
the hooks loads neither.
"""
