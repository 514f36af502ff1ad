"""Pictures of a plan as SVG: the positions of boxes, the routes of lines, and the drawing."""
