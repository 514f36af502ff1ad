"""Pictures of a plan as SVG: where boxes lie, how lines go between them, and what is drawn."""
