"""``millstream demo``: counts words on a real broker, through Spark, in one terminal, and checks the counts with Python.

The *main thread* shows the board and handles signals (:mod:`demo_command`, :mod:`display`). The *conductor* starts, watches, checks and
stops everything (:mod:`conductor`). One thread writes lines, and one reads counts (:mod:`traffic`). All threads share the *board*
(:mod:`board`). Only the conductor calls Spark: a KeyboardInterrupt during a Py4J call would leave an unread answer on the connection,
and the next call would read it as its own.
"""
