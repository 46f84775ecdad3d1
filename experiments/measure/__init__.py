"""Measures and compares: benchmarks, several runs on one page, growth, programs, a drill."""
