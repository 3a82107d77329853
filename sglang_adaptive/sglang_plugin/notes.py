"""The one attribute that this package sets on SGLang's objects, for data that must travel with them.

- On ServerArgs: the launcher's findings, a dict. "reason" says why adaptive speculation is off, or is None if it is on;
  then "stamp" is the ``file_stamp`` of the configuration file just before it was read.
- On a result: the `RoundNote` of its round.
- On a batch: what its penalizers have `Counted`, for the next round.
"""

NOTE = "_adaptive_note"
"""ServerArgs accepts new attributes only with a leading underscore."""
