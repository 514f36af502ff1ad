"""``millstream doctor``: checks what Millstream needs on a machine, and reports a finding for each, with the exact fix.

A check is a function from an ``Inquiry`` to findings; it prints nothing. Checks leave most decisions to small functions of plain values
(:mod:`machine`), which contain the limits and which the tests call. :mod:`doctor_report` has the table of checks. The doctor changes
nothing on the machine and downloads nothing.
"""
