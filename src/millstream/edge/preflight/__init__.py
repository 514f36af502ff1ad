"""The preflight check: what a start would find and do, without starting anything."""
