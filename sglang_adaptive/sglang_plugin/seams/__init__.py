"""The only modules that hook SGLang, one for each area of it.

Their functions say what SGLang is doing and hand it on: to the `Round`, or to the room whose job it is. A new release
of SGLang changes these modules and nothing else. They import SGLang and the rooms inside their functions, so that a
process which only has to know what is hooked loads neither.
"""
