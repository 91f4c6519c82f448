"""The demo: a simulator, Dagster's processes and the example workload, taken to closure."""
