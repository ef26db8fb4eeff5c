"""How families of models write reasoning and calls of tools into their text, and how clients get them back apart."""
