"""The wire of Gemini: request lines out, result rows and status in."""
