"""Records of topics, read and written by hand."""
