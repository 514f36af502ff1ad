"""The lab: deploy, try, inspect and edit a topology from a notebook or a shell."""
