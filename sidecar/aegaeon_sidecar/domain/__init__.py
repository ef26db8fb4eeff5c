"""Plain data and rules that every package uses: commands, reports, errors, the program, the lock."""
