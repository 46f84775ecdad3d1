"""Lays arrays out over the mesh and keeps the hosts of one run together."""
