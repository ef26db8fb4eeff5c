"""The model catalog and the text side of models."""
