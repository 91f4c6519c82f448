"""Measurements: ``python -m benchmarks NAME``. The last line of each is JSON."""
