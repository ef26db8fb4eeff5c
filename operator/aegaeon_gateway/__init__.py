"""The OpenAI API in, tokens out; it holds the one true prefix of every answer."""
