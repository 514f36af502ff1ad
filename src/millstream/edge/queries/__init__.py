"""Interactive queries: the stores of a running application, read from its program, another process, a shell or over HTTP."""
