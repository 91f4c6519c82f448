"""The wire of Openai: request lines out, result rows and status in."""
