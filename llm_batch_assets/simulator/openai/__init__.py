"""The OpenAI part: files and batches."""
