"""The lab: deploy, try, look into and edit a topology from a notebook or a shell."""
