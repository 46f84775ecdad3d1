"""Makes from a config what a run needs, and checks it."""
