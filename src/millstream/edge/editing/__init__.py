"""Editing the topology of a running application, and going on with another query."""
