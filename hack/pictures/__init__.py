"""Pictures for the documentation of what our own commands print: run, made the same each time, drawn as SVG."""
