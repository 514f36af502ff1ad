"""Local copies on other hosts: a process beside an executor reads them for the application."""
