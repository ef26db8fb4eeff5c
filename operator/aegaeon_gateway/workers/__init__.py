"""Work on untrusted bytes (request bodies, chat templates, tokenizers) in processes that have limits.

The gateway starts one *fork server*, which holds every model's tokenizer; *workers* are its forks, so they begin within
milliseconds, share its memory, and one that exceeds its limits is replaced without loading anything again.
"""
