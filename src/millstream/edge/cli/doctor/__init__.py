"""``millstream doctor``: what Millstream needs on a machine, one finding each, with the exact thing to do.

A check is a function from an ``Inquiry`` to findings, and knows nothing of printing; what it judges is mostly done by
small functions of plain values (:mod:`machine`), which is where the limits are and what the tests call. The table of
checks is in :mod:`report`. Nothing is changed on the machine, and nothing is downloaded.
"""
