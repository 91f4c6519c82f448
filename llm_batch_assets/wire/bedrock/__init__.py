"""The wire of Bedrock: request lines out, result rows and status in."""
