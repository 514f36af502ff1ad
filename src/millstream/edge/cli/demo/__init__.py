"""``millstream demo``: word count on a real broker, through Spark, checked against Python, in one terminal.

Who does what: the *main thread* shows the board and takes signals (:mod:`command`, :mod:`display`); the *conductor*
starts, watches, checks and stops everything (:mod:`conductor`); one thread writes lines and one reads counts
(:mod:`traffic`). They meet on the *board* (:mod:`board`). Only the conductor speaks with Spark: a KeyboardInterrupt in
the middle of a Py4J call would leave its connection with an answer nobody reads, which the next call takes for its own.
"""
