"""The Gemini part: files, batches as operations, under ``/v1`` and ``/v1beta``."""
