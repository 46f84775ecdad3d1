"""Makes what reward models are trained on: pairs, labelled steps, replayed samples."""
