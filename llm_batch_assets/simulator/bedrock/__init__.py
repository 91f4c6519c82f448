"""The Bedrock part: model invocation jobs over a real S3 endpoint."""
