"""`python -m aegaeon_cli` is the `aegaeon` command."""

from aegaeon_cli.main import main

if __name__ == "__main__":
    main(prog_name="aegaeon")
