"""The one attribute that this package puts on SGLang's objects, where what it says has to travel with them.

- On ServerArgs: what the launcher found, a dict. "reason" says why adaptive speculation is off, None where it is on;
  then "stamp" is the ``file_stamp`` of the configuration's file just before it was read. LEARNS says whether DSPARK's
  planner, which chooses widths of its own, learns what rounds cost.
- On a result: the `RoundNote` of its round.
- On a batch: what its penalizers have `Counted`, for the round that follows.
"""

NOTE = "_adaptive_note"
"""ServerArgs takes new attributes with a leading underscore alone."""
LEARNS = "learns"
