"""Example workloads on real input that every machine with Python already has."""
