"""Unit tests, in the same folders as the modules of src/millstream."""
