"""One HTTP answer: its generations and the OpenAI response bodies."""
