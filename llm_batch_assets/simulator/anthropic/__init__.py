"""The Anthropic part: message batches."""
