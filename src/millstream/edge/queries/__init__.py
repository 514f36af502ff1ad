"""Interactive queries: read the stores of a running application from its program, another process, a shell or over HTTP."""
