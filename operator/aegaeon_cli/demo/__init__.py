"""`aegaeon demo`: the whole stack in real processes, driven and watched by an OpenAI client, checked at the end."""
