"""Plain data and rules that every room knows: commands, reports, errors, the program, the lock of all books."""
