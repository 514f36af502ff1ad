"""Unit tests: values in, values out; the folders are those of src/millstream."""
