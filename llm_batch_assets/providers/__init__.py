"""Providers: one module per SDK behind ``providers.base.BatchProvider``."""
