"""OpenAI's files and batches: requests from a file, answered on what online traffic leaves of the engines."""
