"""Measurements: ratios of things that were timed in one run, interleaved."""
