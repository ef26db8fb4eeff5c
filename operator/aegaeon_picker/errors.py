"""Errors of the picker."""


class PickerError(Exception):
    """An error; the message says what is wrong and what to do."""
