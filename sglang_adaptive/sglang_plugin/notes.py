"""The one attribute that this package sets on SGLang's objects, for data that must travel with them.

- On a command line and ServerArgs: the launcher's findings, a dict. "reading" is the configuration, a `Reading`.
  "reason" says why adaptive speculation is off, or is None if it is on.
- On a result: the `RoundNote` of its round.
- On a batch: what its penalizers have `Counted`, for the next round.
"""

NOTE = "_adaptive_note"
"""ServerArgs accepts new attributes only with a leading underscore."""
