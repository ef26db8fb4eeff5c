"""One generation, from its submission to its last token."""
