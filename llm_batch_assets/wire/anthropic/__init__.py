"""The wire of Anthropic: request lines out, result rows and status in."""
